"""What a dataplane process reports to a real lease service is what its kernel has."""

import os
import signal
from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb
from tests.hosts.dataplane import Cluster
from tests.patience import PATIENCE
from tests.waiting import eventually

SOAK = bool(os.environ.get("FLANNELETTE_SOAK"))
MAC = "06:0c:56:6d:fb:b3"


async def convergence(cluster: Cluster, *, wait: int = 0, cursor: str = "") -> pb.GetConvergenceResponse:
    async with cluster.calls() as stub:
        request = pb.GetConvergenceRequest(cursor=cursor, wait=Duration(seconds=wait))
        return await stub.GetConvergence(request, timeout=wait + 10)


async def node(cluster: Cluster) -> pb.Node:
    async with cluster.calls() as stub:
        nodes = {node.name: node for node in (await stub.ListNodes(pb.ListNodesRequest(), timeout=PATIENCE)).nodes}
        return nodes["n1"]


async def until(
    cluster: Cluster, condition: Callable[[pb.GetConvergenceResponse], bool], within: float = PATIENCE
) -> None:
    await eventually(lambda: convergence(cluster), condition, within)


async def is_converged(cluster: Cluster) -> None:
    found = await convergence(cluster, wait=20)
    assert found.converged, found


async def test_when_a_change_has_converged_its_route_is_in_the_kernel(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        for number in range(2, 12):
            name = await cluster.join(f"n{number}", f"10.99.0.{10 + number}", f"{MAC[:-2]}{number:02x}")
            await is_converged(cluster)
            assert any(name.split("-")[0] in route for route in cluster.routes())
        assert len(cluster.routes()) == 10
        found = await node(cluster)
        assert (found.connected, found.behind, found.failed_count) == (True, 0, 0)


async def test_a_stopped_dataplane_is_pending_and_a_killed_one_is_not_connected(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await is_converged(cluster)
        running.process.send_signal(signal.SIGSTOP)
        await cluster.join("n2", "10.99.0.12", MAC)
        found = await convergence(cluster, wait=1)
        assert (found.converged, list(found.nodes_pending)) == (False, ["n1"])
        assert (await node(cluster)).behind == 1
        await running.end(signal.SIGKILL)
        await until(cluster, lambda found: not (found.nodes_pending or found.nodes_done))
        assert not (await node(cluster)).connected


@pytest.mark.skipif(not SOAK, reason="half a minute of silence: only with FLANNELETTE_SOAK=1")
async def test_a_dataplane_that_stays_stopped_is_given_up_and_heard_again_when_it_goes_on(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await is_converged(cluster)
        running.process.send_signal(signal.SIGSTOP)
        await until(cluster, lambda found: not (found.nodes_pending or found.nodes_done), within=45)
        assert not (await node(cluster)).connected
        running.process.send_signal(signal.SIGCONT)
        await is_converged(cluster)


async def test_it_reports_again_to_a_lease_service_that_was_started_anew(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await is_converged(cluster)
        cluster.leases.kill()
        cluster.leases = cluster.start_leases()
        await running.until(peers=0)
        await is_converged(cluster)


async def test_a_torn_down_node_takes_back_what_it_said_until_it_is_brought_into_line(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await is_converged(cluster)
        await running.teardown()
        await until(cluster, lambda found: list(found.nodes_pending) == ["n1"])
        await running.resync()
        await is_converged(cluster)


async def test_a_peer_that_cannot_be_reached_is_reported_with_the_reason_and_again_when_it_can(
    cluster: Cluster,
) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        cluster.ip("route add 10.5.40.0/24 via 10.99.0.77")
        name = await cluster.join("n2", "10.99.0.12", MAC, "10.5.40.0/24")
        assert name == "10.5.40.0-24"
        await running.resync()
        await until(cluster, lambda found: list(found.nodes_failed) == ["n1"])
        (failed,) = (await node(cluster)).failed
        assert failed.name == name
        assert failed.reason == "a route that is not ours wins: 10.5.40.0/24 via 10.99.0.77 dev eth0"
        cluster.ip("route del 10.5.40.0/24 via 10.99.0.77")
        await running.resync()
        await is_converged(cluster)


async def test_a_node_that_was_never_ready_has_reported_nothing(cluster: Cluster) -> None:
    async with cluster.dataplane("--subnet-file=/proc/no/subnet.env") as running:
        status = await running.until(ready=False, mtu=1450)
        while not status.cursor:
            status = await running.until(ready=False)
        found = await convergence(cluster, wait=1)
        assert list(found.nodes_pending) == ["n1"]
        assert not (await node(cluster)).HasField("report_time")
