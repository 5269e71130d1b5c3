"""A node that restarts while nobody tells any leases, and what it remembers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.runtime.cache import NodeState
from tests.examples.state_files import decode
from tests.hosts.dataplane import Cluster, Running
from tests.hosts.namespaces import NamespaceMaker

MAC, OTHER_MAC, THIRD_MAC = "06:0c:56:6d:fb:b3", "06:0c:56:6d:fb:b4", "06:0c:56:6d:fb:b5"
REMEMBERED = "the leases are those of "


def reboot(cluster: Cluster, make_netns: NamespaceMaker) -> None:
    """What is in the kernel and under /run is gone."""
    cluster.namespace = make_netns()
    cluster.ip("link add eth0 type veth peer far")
    for name in ("eth0", "far"):
        cluster.ip(f"link set {name} up")
    cluster.ip("address add 10.99.0.11/16 dev eth0")
    cluster.ip("route add default via 10.99.0.1")
    (cluster.directory / "subnet.env").unlink()


def state_file(cluster: Cluster) -> Path:
    return cluster.directory / "state/dataplane.state"


def memory(cluster: Cluster) -> NodeState:
    return decode("dataplane", state_file(cluster).read_bytes(), "n1")


@asynccontextmanager
async def restarted(cluster: Cluster, *arguments: str) -> AsyncIterator[Running]:
    """A dataplane that finds no subnet.env, which Cluster.dataplane would give it."""
    running = Running(cluster, arguments, ())
    try:
        yield running
    finally:
        await running.end(9)


async def remembering(running: Running, peers: int) -> pb.Status:
    status = await running.until(ready=False, peers=peers)
    assert any(reason.startswith(REMEMBERED) for reason in status.reasons), status.reasons
    assert not any("connect failed" in reason for reason in status.reasons)  # nobody is asked who is not there
    return status
