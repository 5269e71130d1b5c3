"""A node whose own subnet is not what the bridge of its pods has, and who says so.

Regression tests of hole 7.
"""

import asyncio
import subprocess
import sys

import pytest

from tests.hosts.dataplane import VXLAN, Cluster, Running, cluster_in, environment
from tests.hosts.namespaces import NetworkNamespace
from tests.waiting import eventually


@pytest.mark.parametrize("bridge", ["cni0", "docker0"])
async def test_a_bridge_of_another_subnet_than_the_nodes_is_found(netns: NetworkNamespace, bridge: str) -> None:
    with cluster_in(netns, VXLAN) as cluster:
        make_bridge(cluster, bridge, "10.5.99.1/24")
        async with cluster.dataplane() as running:
            await running.until(ready=False, peers=0, lease_service_connected=True)
            found = await until_found(running)
            assert f"The bridge {bridge} has 10.5.99.1/24" in found
            assert "Pods of this node are not in subnet 10.5.27.0/24" in await asyncio.to_thread(doctor, cluster)


async def test_a_bridge_of_dockers_own_is_nothing_to_tell(netns: NetworkNamespace) -> None:
    with cluster_in(netns, VXLAN) as cluster:
        make_bridge(cluster, "docker0", "172.17.0.1/16")
        async with cluster.dataplane() as running:
            await running.until()
            await running.resync()
            await running.quiet()
            assert not (await running.status()).findings


def make_bridge(cluster: Cluster, name: str, address: str) -> None:
    """With a pod at it, which has a carrier."""
    for line in (
        f"link add {name} type bridge",
        f"address add {address} dev {name}",
        f"link set {name} up",
        "link add pod type veth peer name far-pod",
        f"link set pod master {name} up",
        "link set far-pod up",
    ):
        cluster.ip(line)


async def until_found(running: Running) -> str:
    found = (await eventually(running.status, lambda status: status.findings)).findings
    assert [each.check for each in found] == ["bridge-address"]
    return found[0].cause


def doctor(cluster: Cluster) -> str:
    command = [
        sys.executable,
        "-m",
        "flannelette.services.ctl.main",
        f"--socket-dir={cluster.directory}",
        "doctor",
        "dataplane",
    ]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
