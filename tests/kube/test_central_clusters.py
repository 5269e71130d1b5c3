"""Pods of another cluster, as docs/kubernetes.md says: central lease services and those of the other one import."""

import shutil
import sys
from pathlib import Path

import pytest

from lab.kubernetes.cluster import Cluster
from lab.kubernetes.node import run
from lab.kubernetes.options import POD_NETWORKS, Options
from tests.kube.flood import flood
from tests.kube.page import PAGE, Shell
from tests.kube.test_central import CENTRAL, hand_out_certificates
from tests.kube.west import NETWORK, West, west
from tests.kube.workloads import OURS, get, until, until_rolled_out

pytestmark = [
    pytest.mark.kube,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("cluster", [Options(nodes=4)], indirect=True, ids=["four nodes"]),
]

EXPOSE, IMPORT, LOOK = PAGE["Pods of another cluster"].blocks


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


async def certs(*words: str | Path) -> None:
    await run(sys.executable, "-m", "flannelette.services.ctl.main", "certs", *map(str, words))


async def certify(other: West, shell: Shell) -> None:
    """The other cluster's own, and what it gives to this one."""
    await certs("ca", other.tls)
    await certs("server", "lease", other.tls, "--address", other.address.partition(":")[0])
    await certs("cluster", "east", other.tls)
    given = shell.home / "from-west"
    given.mkdir()
    for name in ("ca.crt", "east-cluster.crt", "east-cluster.key"):
        shutil.copy2(other.tls / name, given)


async def start_central(cluster: Cluster, shell: Shell) -> None:
    """By the chart. Their certificate names a node too, at whose port others connect to them."""
    await hand_out_certificates(cluster, shell, f"--address {cluster.nodes[0].host.address}")
    await shell.type_section("From the manifests to the chart and back", blocks=slice(1))
    upgrade = "helm upgrade flannel deploy/helm/flannelette --namespace kube-flannel --reuse-values --set "
    await shell.type(f"{upgrade} flannelette.central.enabled=true")
    await until_rolled_out(cluster)
    await until_rolled_out(cluster, CENTRAL)


async def expose(cluster: Cluster, shell: Shell) -> str:
    """The flag by which the other cluster imports from this one."""
    await shell.type_block(EXPOSE)
    (port,) = (await get(cluster, "service", "flannelette-clusters", *OURS))["spec"]["ports"]
    tls, node = shell.home / "tls", cluster.nodes[0].host.address
    files = f"cert={tls}/west-cluster.crt,key={tls}/west-cluster.key,ca={tls}/ca.crt"
    return f"east={node}:{port['nodePort']},allow={POD_NETWORKS[4]},{files}"


async def test_pods_of_two_clusters_reach_each_other(cluster: Cluster, shell: Shell) -> None:
    async def has_imported() -> bool:
        said = await shell.type_block(LOOK)
        return f"west at {other.address}, connected, 1 lease" in said and f"\n{NETWORK[:6]}" in said

    await start_central(cluster, shell)
    async with west() as other:
        await certify(other, shell)
        await other.start(await expose(cluster, shell))
        async with flood(cluster, "imports of another cluster by the chart"):
            await shell.type_block(IMPORT, {"192.0.2.7:7070": other.address, "10.245.0.0/16": NETWORK})
            await until_rolled_out(cluster)
            await until_rolled_out(cluster, CENTRAL)
        pod = await other.start_pod(len(cluster.nodes))
        await until(has_imported)
        async with flood(cluster, "every service of two clusters replaced", beside=[pod]):
            for name in ("lease", "dataplane", "masq"):
                await other.kill(name)
            await cluster.kubectl("rollout", "restart", *OURS, CENTRAL, "daemonset/kube-flannel-ds")
            await until_rolled_out(cluster, CENTRAL)
            await until_rolled_out(cluster)
            await until(has_imported)
