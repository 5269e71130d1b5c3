"""Every call of the dataplane's service, against a real process in a namespace, beside a real lease service."""

import asyncio
import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2
from tests.hosts.dataplane import Cluster, Running
from tests.patience import PATIENCE
from tests.waiting import eventually

MACS = {"n2": "06:0c:56:6d:fb:b2", "n3": "06:0c:56:6d:fb:b3", "n4": "06:0c:56:6d:fb:b4"}
FOREIGN = "10.5.43.0/24 via 10.99.0.77 dev eth0"
MOMENTS = 15 if os.environ.get("FLANNELETTE_SOAK") else 5


async def join(cluster: Cluster, *nodes: str) -> dict[str, str]:
    """Nodes n2 to n4 with the subnets 10.5.42.0/24 to 10.5.44.0/24; the names of their leases."""
    return {
        node: await cluster.join(node, f"10.99.0.1{node[1:]}", MACS[node], f"10.5.4{node[1:]}.0/24") for node in nodes
    }


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def names(running: Running, **request: Any) -> list[str]:
    response = await running.stub.ListPeers(pb.ListPeersRequest(**request))
    assert response.counts.total == 3, "the counts are of all peers, whatever is asked for"
    return [peer.name for peer in response.peers]


async def test_the_status_has_everything_about_the_node_at_a_glance(cluster: Cluster) -> None:
    before = time.time()
    async with cluster.dataplane("--ip-masq") as running:
        await running.until(peers=0)
        await join(cluster, "n2")
        status = await running.until(peers=1)
        assert (status.node, status.backend, status.mtu, status.ip_masq) == ("n1", "vxlan", 1450, True)
        assert (status.lease.name, list(status.lease.subnets)) == ("10.5.27.0-24", ["10.5.27.0/24"])
        assert (
            before
            < status.lease.renew_time.ToMilliseconds() / 1000
            < status.lease.expire_time.ToMilliseconds() / 1000
        )
        assert (status.underlay.interface, list(status.underlay.addresses)) == ("eth0", ["10.99.0.11"])
        assert status.underlay.reason
        (device,) = status.devices
        assert (device.name, device.mtu) == ("flannel.1", 1450)
        assert device.mac in cluster.ip("link show flannel.1")
        assert status.peers == pb.PeerCounts(
            total=1, programmed=1, pending=0, failed=0, shadowed=0, ignored=0, expired=0
        )
        assert (status.lease_service_connected, status.store_connected) == (True, True)
        assert status.cursor
        assert status.version
        assert before - 1 < status.start_time.ToMilliseconds() / 1000 < time.time()
        assert before < status.last_resync_time.ToMilliseconds() / 1000 < time.time()
        assert not status.reasons
        assert not status.unclaimed
        cluster.ip(f"route add {FOREIGN}")
        await running.resync()
        assert [route.split(" proto")[0] for route in (await running.status()).unclaimed] == [FOREIGN]


async def test_before_there_is_a_network_calls_say_what_is_missing(cluster: Cluster) -> None:
    cluster.network_file.write_text("{}")
    cluster.leases.kill()
    cluster.leases = cluster.start_leases()
    async with cluster.dataplane() as running:
        status = await running.until(ready=False, lease_service_connected=True)
        assert (status.HasField("lease"), status.HasField("underlay"), status.cursor) == (False, False, "")
        assert status.reasons
        listed = await running.stub.ListPeers(pb.ListPeersRequest())
        assert (list(listed.peers), listed.counts.total) == ([], 0)
        for call in (
            running.stub.ResyncKernel(pb.ResyncKernelRequest(dry_run=True)),
            running.stub.ResyncKernel(pb.ResyncKernelRequest()),
            running.stub.TeardownKernel(pb.TeardownKernelRequest(dry_run=True)),
            running.stub.TeardownKernel(pb.TeardownKernelRequest()),
        ):
            code, details = await refusal(call)
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert details
        first, *_ = await running.events()
        assert (first.kind, first.cause) == (pb.EVENT_KIND_SERVICE_STARTED, "")


async def test_the_status_is_streamed_at_once_and_whenever_it_changes_but_not_oftener_than_that(
    cluster: Cluster,
) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await running.quiet()
        before = await running.status()
        call: Any = running.stub.WatchStatus(pb.WatchStatusRequest())
        seen: list[pb.Status] = [(await call.read()).status]
        assert seen[0] in (before, await running.status())
        started = time.monotonic()
        for version in range(30):
            number = version // 10  # a node that changes more often is held
            mac, subnet = f"06:0c:56:6d:fb:{version:02x}", f"10.5.{42 + number}.0/24"
            await cluster.join(f"n{2 + number}", f"10.99.0.{12 + number}", mac, subnet)
        await eventually(cluster.fdb, lambda entries: any("06:0c:56:6d:fb:1d" in entry for entry in entries))
        async with asyncio.timeout(PATIENCE):  # until nothing changes any more
            reading = asyncio.ensure_future(call.read())
            while (await asyncio.wait([reading], timeout=0.5))[0]:
                seen.append(reading.result().status)
                took = time.monotonic() - started
                reading = asyncio.ensure_future(call.read())
        assert len(seen) <= 2 + took / 0.1
        assert all(later != earlier for earlier, later in pairwise(seen))
        assert seen[-1] == await running.status()
        call.cancel()


async def test_peers_are_listed_sorted_and_chosen_by_lease_by_node_or_by_what_is_missing(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        leases = await join(cluster, "n4", "n3", "n2")
        await running.until(peers=3)
        assert await names(running) == sorted(leases.values()) == ["10.5.42.0-24", "10.5.43.0-24", "10.5.44.0-24"]
        assert await names(running, name="n3") == await names(running, name=leases["n3"]) == [leases["n3"]]
        assert await names(running, unprogrammed=True) == []
        cluster.ip(f"route add {FOREIGN}")
        (looked,) = (await running.stub.ListPeers(pb.ListPeersRequest(name="n3", look=True))).peers
        assert looked.state == pb.PEER_STATE_SHADOWED  # a look sees it before any audit does
        await running.resync()
        assert await names(running, unprogrammed=True) == [leases["n3"]]
        assert await names(running, unprogrammed=True, name="n2") == []
        (shadowed,) = (await running.stub.ListPeers(pb.ListPeersRequest(name="n3"))).peers
        assert shadowed.state == pb.PEER_STATE_SHADOWED
        assert FOREIGN in shadowed.reason
        (looked,) = (await running.stub.ListPeers(pb.ListPeersRequest(name="n3", look=True))).peers
        assert looked.reason == shadowed.reason
        assert [o.actual for o in looked.objects if o.programmed] == [o.text for o in shadowed.objects]
        assert [(o.text, FOREIGN in o.actual, o.remark) for o in looked.objects if not o.programmed] == [
            ("", True, "not ours, and wins over ours")
        ]
        code, _ = await refusal(running.stub.ListPeers(pb.ListPeersRequest(look=True)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        code, details = await refusal(running.stub.ListPeers(pb.ListPeersRequest(name="n9")))
        assert code is grpc.StatusCode.NOT_FOUND
        assert "'n9'" in details


async def test_a_resync_of_a_kernel_that_is_as_it_shall_be_has_no_commands_dry_or_not(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await join(cluster, "n2", "n3")
        await running.until(peers=2)
        await cluster.quiet()
        before = cluster.everything()
        assert await running.resync(dry_run=True) == pb.ResyncKernelResponse()
        assert await running.resync() == pb.ResyncKernelResponse()
        assert (await running.status()).last_resync_changes == 0
        assert cluster.everything() == before


async def test_a_teardown_removes_what_its_dry_run_says_and_lasts_until_a_resync(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await join(cluster, "n2", "n3")
        await running.until(peers=2)
        before = cluster.routes()
        planned = await running.stub.TeardownKernel(pb.TeardownKernelRequest(dry_run=True))
        assert cluster.routes() == before
        assert planned.commands
        done = await running.teardown()
        assert (list(done.commands), list(done.errors)) == (list(planned.commands), [])
        assert cluster.routes() == []
        assert "flannel.1" not in cluster.ip("link show")
        status = await running.until(ready=False)
        assert "torn down by an operator" in status.reasons[0]
        await join(cluster, "n4")
        await running.until(ready=False, lease_service_connected=True)
        assert cluster.routes() == [], "paused"
        assert not list((await running.teardown()).commands), "again is nothing"


async def test_a_lease_that_is_released_after_a_teardown_is_gone_until_a_resync_asks_for_it_again(
    cluster: Cluster,
) -> None:
    async with cluster.dataplane() as running:
        held = (await running.until(peers=0)).lease.name
        await running.teardown()
        await cluster.leave("n1", held)
        status = await running.until(ready=False, lease=pb.OwnLease())
        assert "torn down by an operator" in status.reasons[0]
        assert cluster.routes() == []
        await running.resync()
        assert (await running.until(peers=0)).lease.name == held


async def test_after_a_teardown_a_dry_run_has_the_commands_of_the_resync_that_ends_it(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await join(cluster, "n2", "n3")
        await running.until(peers=2)
        before = cluster.routes()
        await running.teardown()
        planned = await running.resync(dry_run=True)
        assert cluster.routes() == []
        assert sum("route" in command for command in planned.commands) == len(before)
        assert await running.resync() == planned
        await running.until(peers=2)
        assert cluster.routes() == before


async def test_who_leaves_a_hand_over_or_a_teardown_finds_it_done_or_not_begun(cluster: Cluster) -> None:
    """Whatever moment that is; and the dataplane goes on as if nobody had left."""
    peers = 150
    async with cluster.dataplane() as running, cluster.calls() as leases:
        for number in range(peers):
            subnet = lease_pb2.Subnet(cidr=f"10.5.{100 + number}.0/24", public_address=f"10.99.1.{number}")
            subnet.vxlan.vni, subnet.vxlan.mac = 1, f"06:0c:56:6d:fc:{number:02x}"
            await leases.AcquireLease(
                lease_pb2.AcquireLeaseRequest(node=f"m{number}", subnets=[subnet], backend_type="vxlan")
            )
        await running.until(peers=peers)
        calls: dict[tuple[int, int], Callable[[], Any]] = {
            (0, peers): lambda: running.stub.HandOver(pb.HandOverRequest()),
            (0, 0): lambda: running.stub.TeardownKernel(pb.TeardownKernelRequest()),
        }
        for done, call in calls.items():
            seen = set()
            for milliseconds in range(0, 60, 60 // MOMENTS):
                asked = call()
                await asyncio.sleep(milliseconds / 1000)
                asked.cancel()
                seen.add(await left(running, peers))
            await call()
            seen.add(await left(running, peers))
            ahead = 1
            while (peers, peers) not in seen:  # it waits for its turn when it is left, if enough others are before it
                others = [asyncio.create_task(running.resync(dry_run=True)) for _ in range(ahead)]
                await asyncio.sleep(0)
                asked = call()
                await asyncio.sleep(0.005)
                asked.cancel()
                await asyncio.gather(*others)
                seen.add(await left(running, peers))
                ahead *= 2
                assert ahead < 1000, "it is never found not begun"
            assert seen == {(peers, peers), done}
        assert "Traceback" not in running.log
        assert "never retrieved" not in running.log


async def left(running: Running, peers: int) -> tuple[int, int]:
    """How many routes are ours, and how many there are, after a call was left; then it is as before."""
    cluster = running.cluster
    assert isinstance(cluster, Cluster)
    plan = await running.resync(dry_run=True)  # takes its turn behind whatever is still going on
    status, routes = await running.status(), cluster.routes()
    ours = sum(" proto 77 " in route for route in routes)
    assert ("flannel.1" in cluster.ip("-br link")) is bool(routes)
    assert bool(plan.commands) is (ours == 0) is bool(status.reasons)
    assert not (await running.resync()).errors
    await running.until(peers=peers)
    return ours, len(routes)
