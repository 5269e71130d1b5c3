"""Four nodes go to central lease services and back, one by one, as docs/kubernetes.md says; no packet is lost."""

from pathlib import Path

import pytest

from lab.kubernetes.cluster import Cluster
from lab.kubernetes.options import Options
from tests.kube.flood import flood
from tests.kube.page import Shell
from tests.kube.workloads import DAEMON_SET, OURS, get, until_rolled_out

pytestmark = [
    pytest.mark.kube,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("cluster", [Options(nodes=4)], indirect=True, ids=["four nodes"]),
]

CENTRAL = "deployment/flannelette-lease"
LARGE = "Large clusters"
TLS = "/etc/flannelette/tls"


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


async def hand_out_certificates(cluster: Cluster, shell: Shell, more: str = "") -> None:
    """To each node its own, and nobody else's; with `more` addresses in that of the lease services."""
    await shell.type_section(LARGE, {"--address 10.96.0.70": f"--address 10.96.0.70 {more}"}, slice(1))
    tls = shell.home / "tls"
    for node in cluster.nodes:
        await shell.type_section(LARGE, {" n1 ": f" {node.name} "}, slice(1, 2))
        await node.run("mkdir", "-p", TLS)
        for path in (tls / "ca.crt", *tls.glob(f"{node.name}-*")):
            await node.run("sh", "-c", f"umask 077; cat >{TLS}/{path.name}", file=path)


async def sidecars_of(cluster: Cluster) -> list[str]:
    daemon_set = await get(cluster, DAEMON_SET, *OURS)
    assert daemon_set["status"]["numberReady"] == len(cluster.nodes)
    return [each["name"] for each in daemon_set["spec"]["template"]["spec"]["containers"]]


async def what_central_has(cluster: Cluster) -> list[str]:
    kinds = "deployment,service,poddisruptionbudget,secret"
    return (await cluster.kubectl("get", kinds, *OURS, "--output=name")).split()


async def test_to_the_overlay_central_and_back(cluster: Cluster, shell: Shell) -> None:
    await hand_out_certificates(cluster, shell)
    async with flood(cluster, "four nodes to central lease services"):
        await shell.type_section(LARGE, blocks=slice(2, 3))
        await until_rolled_out(cluster)
        await until_rolled_out(cluster, CENTRAL)
    assert await sidecars_of(cluster) == ["dataplane", "masq"]
    assert "h4" in await cluster.kubectl("exec", CENTRAL, *OURS, "--", "flannelette", "nodes")
    async with flood(cluster, "four nodes back from central lease services"):
        await shell.type_section("To central lease services and back")
    assert await sidecars_of(cluster) == ["lease", "dataplane", "masq"]
    assert await what_central_has(cluster) == []


async def test_the_chart_goes_to_central_lease_services_and_back(cluster: Cluster, shell: Shell) -> None:
    moves = "From the manifests to the chart and back"
    await hand_out_certificates(cluster, shell)
    await shell.type_section(moves, blocks=slice(1))
    await until_rolled_out(cluster)
    upgrade = "helm upgrade flannel deploy/helm/flannelette --namespace kube-flannel --reuse-values --set "
    async with flood(cluster, "four nodes to central lease services by the chart"):
        await shell.type(f"{upgrade} flannelette.central.enabled=true")
        await until_rolled_out(cluster)
        await until_rolled_out(cluster, CENTRAL)
    assert await sidecars_of(cluster) == ["dataplane", "masq"]
    async with flood(cluster, "four nodes back from central lease services by the chart"):
        await shell.type(f"{upgrade} flannelette.central.enabled=false")
        await until_rolled_out(cluster)
    assert await sidecars_of(cluster) == ["lease", "dataplane", "masq"]
    await shell.type_section(moves, blocks=slice(1, 2))
    await shell.type("kubectl delete secret flannelette-lease --namespace kube-flannel")
    await until_rolled_out(cluster)
    assert await what_central_has(cluster) == []
