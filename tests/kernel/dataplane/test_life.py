"""The dataplane process beside a real lease service: from its start through changes, kills and outages."""

import asyncio
import http.client
import signal
from collections.abc import AsyncIterator

import grpc.aio
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Cluster
from tests.hosts.namespaces import monitored
from tests.patience import PATIENCE
from tests.waiting import contains, equals, eventually

MAC = "06:0c:56:6d:fb:b3"


def metric(name: str) -> int:
    """Of the route to the subnet of a lease `10.5.X.0-24`: its index modulo 65536, plus 1."""
    octets = [int(octet) for octet in name.split("-")[0].split(".")]
    return 1 + (octets[1] << 8) + octets[2]


def route(name: str) -> str:
    gateway = name.split("-")[0]
    return f"{gateway}/24 via {gateway} dev flannel.1 proto 77 metric {metric(name)} onlink"


async def test_peers_appear_change_and_disappear(cluster: Cluster) -> None:
    async with cluster.dataplane("--ip-masq") as running:
        status = await running.until(peers=0)
        own = status.lease.subnets[0].split("/")[0]
        assert f"inet {own}/32 scope global flannel.1" in cluster.ip("addr show flannel.1")
        assert (cluster.directory / "subnet.env").read_text() == (
            f"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET={own[:-1]}1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        )
        name = await cluster.join("n2", "10.99.0.12", MAC)
        await running.until(peers=1)
        subnet = name.split("-")[0]
        assert cluster.routes() == [route(name)]
        assert cluster.neighbours() == [f"{subnet} lladdr {MAC} PERMANENT"]
        assert cluster.fdb() == [f"{MAC} dst 10.99.0.12 self permanent"]
        assert await cluster.join("n2", "10.99.0.22", "06:0c:56:6d:fb:b4") == name
        await eventually(cluster.fdb, equals(["06:0c:56:6d:fb:b4 dst 10.99.0.22 self permanent"]))
        assert cluster.neighbours() == [f"{subnet} lladdr 06:0c:56:6d:fb:b4 PERMANENT"]
        (peer,) = await running.peers()
        assert peer.state == pb.PEER_STATE_PROGRAMMED
        assert [item.text for item in peer.objects] == [
            f"neigh {subnet} dev flannel.1 lladdr 06:0c:56:6d:fb:b4 PERMANENT",
            "fdb 06:0c:56:6d:fb:b4 dev flannel.1 dst 10.99.0.22 self permanent",
            f"route {subnet}/24 via {subnet} dev flannel.1 proto 77 metric {metric(name)} onlink",
        ]
        await cluster.leave("n2", name)
        await running.until(peers=0)
        await eventually(lambda: cluster.routes() + cluster.neighbours() + cluster.fdb(), equals([]))
        assert (await running.status()).repairs == 0
        assert await running.end() == 0


async def test_a_kill_and_a_restart_change_nothing_in_the_kernel(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        for number in range(2, 7):
            await cluster.join(f"n{number}", f"10.99.0.{10 + number}", f"06:0c:56:6d:fb:{number:02x}")
        before = await running.until(peers=5)
        await cluster.quiet()
        kernel = cluster.everything()
        with monitored(cluster.namespace, cluster.directory / "monitor.log") as lines:
            await running.end(signal.SIGKILL)
            async with cluster.dataplane() as again:
                await again.until(peers=5)
                assert not (await again.resync(dry_run=True)).commands  # it waits for what is being done
                after = await again.until(peers=5)
        assert lines == []
        assert cluster.everything() == kernel
        assert (after.last_resync_changes, after.repairs) == (0, 0)
        assert after.lease.subnets == before.lease.subnets
        second_life = again.log.partition("underlay chosen")[2].partition("underlay chosen")[2]
        assert second_life.count("kernel reconciled") == 1


async def test_peers_that_left_while_it_was_down_go_with_the_snapshot_not_before(
    cluster: Cluster,
) -> None:
    """A regression test of defect 6 of flannel v0.28."""
    async with cluster.dataplane() as running:
        name = await cluster.join("n2", "10.99.0.12", MAC)
        other = await cluster.join("n3", "10.99.0.13", "06:0c:56:6d:fb:b4")
        await running.until(peers=2)
        await running.end(signal.SIGKILL)
    await cluster.leave("n2", name)
    cluster.leases.terminate()
    async with cluster.dataplane() as running:
        status = await running.until(ready=False)
        assert "lease.sock" in "".join(status.reasons)  # not connected yet, or nobody answers: as it is asked
        await asyncio.sleep(0.3)
        assert cluster.routes() == sorted([route(name), route(other)])
        cluster.leases = cluster.start_leases()
        status = await running.until(peers=1)
        assert cluster.routes() == [route(other)]
        assert cluster.fdb() == ["06:0c:56:6d:fb:b4 dst 10.99.0.13 self permanent"]
        assert status.last_resync_changes == 3


async def test_while_the_lease_service_is_away_everything_stays_and_status_says_so(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        name = await cluster.join("n2", "10.99.0.12", MAC)
        await running.until(peers=1)
        cluster.leases.terminate()
        status = await running.until(ready=False, lease_service_connected=False, store_connected=False)
        assert status.peers.programmed == 1
        assert status.lease.name
        assert cluster.routes() == [route(name)]
        cluster.ip("link del flannel.1")
        await eventually(
            lambda: cluster.routes() if "flannel.1" in cluster.ip("link") else None, equals([route(name)])
        )
        cluster.leases = cluster.start_leases()
        await running.until(peers=1)
        assert running.log.count(" away; ") == 1


async def test_ready_means_that_the_routes_are_there_and_goes_off_again(cluster: Cluster) -> None:
    """A regression test of defect 16 of flannel v0.28."""
    name = await cluster.join("n2", "10.99.0.12", MAC)
    cluster.leases.terminate()

    def answer() -> int:
        with cluster.namespace.inside():
            there = http.client.HTTPConnection("127.0.0.1", 8471, timeout=PATIENCE)
            there.connect()
        there.request("GET", "/readyz")
        status = there.getresponse().status
        there.close()
        return status

    async with cluster.dataplane("--healthz-port=8471") as running:
        await running.until(ready=False)
        assert (answer(), cluster.routes()) == (503, [])
        cluster.leases = cluster.start_leases()
        await eventually(answer, equals(200))
        assert cluster.routes() == [route(name)]
        await running.stub.TeardownKernel(pb.TeardownKernelRequest())
        assert (answer(), cluster.routes()) == (503, [])
        await running.resync()
        await eventually(answer, equals(200))
        assert cluster.routes() == [route(name)]


async def test_a_revoked_lease_is_acquired_again_with_its_subnet(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        status = await running.until()
        await cluster.leave("n1", status.lease.name)
        await eventually(lambda: running.log, contains("was revoked"))
        assert (await running.until()).lease.name == status.lease.name
        await cluster.join("n2", "10.99.0.12", MAC)
        await running.until(peers=1)  # told after all that became of the own lease
        assert running.log.count("was revoked") == 1


async def test_the_status_stream_tells_each_change_and_ends_when_the_service_stops(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        call = aiter(running.stub.WatchStatus(pb.WatchStatusRequest()))
        first = await anext(call)
        assert first.status.ready
        assert first.status.peers.total == 0
        for number in range(2, 5):
            await cluster.join(f"n{number}", f"10.99.0.{10 + number}", f"06:0c:56:6d:fb:{number:02x}")
            async with asyncio.timeout(PATIENCE):
                while (await anext(call)).status.peers.programmed != number - 1:
                    pass
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError, match="is stopping"):
            await asyncio.wait_for(_all(call), PATIENCE)
        assert running.process.wait(PATIENCE) == 0


async def _all(call: "AsyncIterator[pb.WatchStatusResponse]") -> list[pb.WatchStatusResponse]:
    return [response async for response in call]
