"""What a relay passes down and up: refusals, errors, lost leases, what it does not know; whom it may act for."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.errors import NotYet
from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease, Subnet, lease_key
from flannelette.services.core.leases.table import Removed, Step, Table, Upserted
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.stores.relay import RelayStore
from flannelette.services.lease.stores.store import Changed, Refusal, RefusalKind, Snapshot
from flannelette.services.lease.watch import ChangeLog
from flannelette.services.runtime.lease.feed import LeaseConnection
from tests.examples.leases import NETWORK, SMALL_JSON, make_lease, make_request
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.certificates import LOOPBACK, Certificates, flags
from tests.services.follower import following
from tests.services.lease import FakeStore, ServiceProcess, next_step, serving, stub_of
from tests.services.tiers import acquired, feed_of, is_connected
from tests.waiting import contains, eventually, has

NO_LEASE = Refusal(RefusalKind.UNREADABLE, "is no lease")


@contextmanager
def relay_of(address: str) -> Iterator[RelayStore]:
    yield RelayStore(LeaseConnection(address, ""), ChangeLog("below", 100, 1 << 20), ConnectedNodes())


async def test_what_is_refused_above_is_refused_below_and_can_be_listed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flannelette.services.lease.stores.relay._QUARANTINE_SECONDS", 0.05)
    lease = make_lease(1)
    async with serving(FakeStore(lease), tmp_path) as above:
        with relay_of(above.address) as store:
            async with following(store) as seen:
                await seen.until(lambda f: f.connected and f.leases.keys() == {lease.name})
                above.gate.take(Changed(refused={"junk": "is no lease"}))
                await seen.until(lambda f: f.refused == {"junk": "is no lease"})
                assert await store.relist() == Snapshot({lease.name: lease}, NETWORK, "", {"junk": NO_LEASE})
                above.gate.take(Changed(cleared=frozenset({"junk"})))
                await seen.until(lambda f: not f.refused)
            await store.close()


async def test_the_quarantine_of_every_tier_says_why_a_key_is_refused_as_the_top_does(tmp_path: Path) -> None:
    below, store = tmp_path / "below", FakeStore(make_lease(1))
    below.mkdir()
    async with serving(store, tmp_path) as above:
        near, far = lease_of(ip_network("192.168.7.0/24")), lease_of(ip_network("192.168.8.0/24"))
        above.gate.take(Changed((Upserted(near), Upserted(far)), refused={"junk": "is no lease"}))
        listed = (await above.stub.ListQuarantine(pb.ListQuarantineRequest())).keys
        with ServiceProcess(below, "--store=relay", "--central", f"--upstream={above.address}") as relay:
            async with stub_of(relay.address) as stub:
                found = await quarantined(stub, 3)
                assert [(k.key, k.kind, k.reason) for k in found] == [(k.key, k.kind, k.reason) for k in listed]
                assert [k.kind for k in found] == [
                    pb.REFUSAL_KIND_OUTSIDE_NETWORK,
                    pb.REFUSAL_KIND_OUTSIDE_NETWORK,
                    pb.REFUSAL_KIND_UNREADABLE,
                ]
                for key in found:
                    await stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key.key))
                assert store.discarded == [(near.name, near), (far.name, far), ("junk", "is no lease")]


def lease_of(cidr: Network) -> Lease:
    return Lease(lease_key([cidr]), "", (Subnet(cidr, ip_address("172.16.0.99")),))


async def quarantined(stub: LeaseServiceStub, count: int) -> Sequence[pb.QuarantinedKey]:
    answer = await eventually(
        lambda: stub.ListQuarantine(pb.ListQuarantineRequest()), lambda answer: len(answer.keys) == count
    )
    return answer.keys


async def test_a_relay_does_not_know_what_has_converged_while_the_lease_service_above_is_away(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    lease = make_lease(1)
    async with AsyncExitStack() as stack:
        async with serving(FakeStore(lease), tmp_path) as above:
            relay = stack.enter_context(
                ServiceProcess(below, "--store=relay", "--central", f"--upstream={above.address}")
            )
            stub = await stack.enter_async_context(stub_of(relay.address))
            call, table = stub.WatchLeases(pb.WatchLeasesRequest(node="node1", view=pb.VIEW_ALL)), Table()
            while not table.synced:
                table.fold(await next_step(call))
            cursor = table.cursor
            await stub.ReportProgress(pb.ReportProgressRequest(node="node1", cursor=cursor))
            assert (await stub.GetConvergence(pb.GetConvergenceRequest())).converged
        while not table.store or table.store.connected:
            table.fold(await next_step(call))
        for wait in (0, 5):
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await stub.GetConvergence(pb.GetConvergenceRequest(wait=Duration(seconds=wait)))
            assert unknown.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "what changed last is not known while the relay store is away: " in str(unknown.value.details())
        assert (await stub.GetConvergence(pb.GetConvergenceRequest(cursor=cursor))).nodes_done == ["node1"]


async def test_an_error_above_comes_down_as_it_was_meant(tmp_path: Path) -> None:
    upstream = FakeStore()
    async with serving(upstream, tmp_path) as above:
        with relay_of(above.address) as store:
            upstream.fault = NotYet("write a configuration first")
            with pytest.raises(NotYet, match="write a configuration first"):
                await store.renew("a", "10.5.1.0-24")
            await store.close()


async def test_a_node_behind_a_relay_is_told_that_the_store_has_lost_its_lease(tmp_path: Path) -> None:
    leases = [make_lease(number) for number in range(1, 21)]
    store, below = FakeStore(*leases), tmp_path / "below"
    below.mkdir()
    async with serving(store, tmp_path, guard_seconds=600) as top:
        with ServiceProcess(below, "--store=relay", "--central", f"--upstream={top.address}") as relay:
            async with stub_of(relay.address) as stub:
                call, table = stub.WatchLeases(pb.WatchLeasesRequest(node="node1", view=pb.VIEW_ALL)), Table()
                while not (table.synced and "node1" in top.broker.connected_nodes.nodes):
                    table.fold(await next_step(call)) if not table.synced else await asyncio.sleep(0.02)
                store.events.put_nowait(Changed(tuple(Removed(lease.name) for lease in leases)))
                assert await next_step(call) == Step(lost=leases[0].name)
                store.events.put_nowait(Changed((Upserted(leases[0]),)))
                await eventually(lambda: top.gate.held, has(19))
                store.events.put_nowait(Changed((Removed(leases[0].name),)))
                assert await next_step(call) == Step(lost=leases[0].name), "and once more"
                status = await stub.GetStatus(pb.GetStatusRequest())
                assert (status.leases, status.held_removals) == (20, 0)


async def test_over_tls_a_relay_acts_for_its_nodes_and_operates_nothing(tmp_path: Path) -> None:
    lab, port = Certificates(tmp_path / "lab"), free_port()
    (tmp_path / "net.json").write_text(SMALL_JSON)
    (tmp_path / "below").mkdir()
    above = ("--store-file=memory", f"--net-config-path={tmp_path}/net.json", *flags(lab.server(addresses=LOOPBACK)))
    listen = f"--listen=unix:{tmp_path}/lease.sock,127.0.0.1:{port}"
    relay = ("--store=relay", "--central", f"--upstream=127.0.0.1:{port}", *flags(lab.client("relay")))
    with (
        ServiceProcess(tmp_path, *above, listen) as top,
        ServiceProcess(tmp_path / "below", *relay) as bottom,
    ):
        async with feed_of(bottom, "a") as feed, stub_of(top.address) as stub_above, stub_of(bottom.address) as stub:
            await eventually(lambda: feed, is_connected)
            lease = await acquired(bottom, make_request("a", "172.16.0.1"))
            await eventually(lambda: feed.table.leases, contains(lease.name))
            async with asyncio.timeout(PATIENCE):
                nodes: list[str] = []
                while nodes != ["a"]:
                    listed = await stub_above.ListNodes(pb.ListNodesRequest())
                    nodes = [node.name for node in listed.nodes if node.connected]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ReserveSubnet(pb.ReserveSubnetRequest(cidrs=["10.5.200.0/24"]))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "flannelette://admin/NAME" in (caught.value.details() or "")
