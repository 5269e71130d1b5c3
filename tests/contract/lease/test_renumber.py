"""RenumberNode, and what a lease service tells of a change that is pending: real processes, a relay below.

Regression tests of hole 6.
"""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import LeaseRequest, VxlanData
from flannelette.services.core.network import parse_network
from tests.examples.leases import SMALL_JSON, mac, make_lease, make_request
from tests.services.lease import FakeStore, ServiceProcess, serving, stub_of
from tests.services.tiers import Tiers, acquired, feed_of
from tests.waiting import equals, eventually

OTHER = SMALL_JSON.replace("10.5.0.0/16", "10.6.0.0/16")


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(tmp_path)
    made.config.write_text(SMALL_JSON)
    made.start_top()
    made.add_relay()
    yield made
    for service in made.services:
        service.__exit__(None, None, None)


def asks(number: int, node: str) -> LeaseRequest:
    asked = make_request(node, f"172.16.0.{number}")
    return replace(asked, parts=(replace(asked.parts[0], data=VxlanData(1, mac(number))),))


async def pending(service: ServiceProcess) -> list[str]:
    async with stub_of(service.address) as stub:
        status = await stub.GetStatus(pb.GetStatusRequest())
    return [f"{move.node} {','.join(move.subnets)} {move.where}" for move in status.pending_moves]


async def test_a_lease_outside_a_new_network_stays_and_one_node_moves_through_a_relay(tiers: Tiers) -> None:
    async with feed_of(tiers.bottom) as feed, stub_of(tiers.bottom.address) as stub:
        leases = [await acquired(tiers.top, asks(n, node)) for n, node in enumerate("ab", 1)]
        names = {lease.name for lease in leases}
        await eventually(lambda: feed.table.leases.keys(), equals(names))
        tiers.config.write_text(OTHER)
        await eventually(lambda: feed.table.network, lambda network: network is not None and network.beside)
        assert feed.table.leases.keys() == names
        assert feed.table.network is not None
        assert feed.table.network.source == OTHER
        assert all(any(lease.cidrs[0].subnet_of(b) for b in feed.table.network.beside) for lease in leases)  # type: ignore[arg-type]  # both are IPv4
        where = "a /24 from 10.6.1.0 to 10.6.255.0"
        told = [f"{lease.node} {lease.cidrs[0]} {where}" for lease in leases]
        for service in tiers.services:
            assert await pending(service) == told

        answer = await stub.RenumberNode(pb.RenumberNodeRequest(node="a", dry_run=True))
        assert (answer.move.lease, answer.move.where) == (leases[0].name, where)
        assert await pending(tiers.top) == told
        await stub.RenumberNode(pb.RenumberNodeRequest(node="a"))
        await eventually(lambda: feed.table.leases.keys(), equals({leases[1].name}))
        new = await acquired(tiers.bottom, asks(1, "a"))
        assert new.cidrs[0].subnet_of(ip_network("10.6.0.0/16"))  # type: ignore[arg-type]  # as above
        assert (await acquired(tiers.bottom, asks(2, "b"))).name == leases[1].name
        await eventually(lambda: feed.table.leases.keys(), equals({new.name, leases[1].name}))
        assert feed.table.network.beside == leases[1].cidrs
        for node, code, words in (
            ("a", grpc.StatusCode.NOT_FOUND, "no network change is pending for node a"),
            ("", grpc.StatusCode.INVALID_ARGUMENT, "central"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.RenumberNode(pb.RenumberNodeRequest(node=node))
            assert (caught.value.code(), words in (caught.value.details() or "")) == (code, True)


async def test_a_service_that_starts_while_a_change_is_pending_tells_the_same(tiers: Tiers) -> None:
    lease = await acquired(tiers.top, asks(1, "a"))
    tiers.config.write_text(OTHER)
    tiers.top.kill()
    (tiers.directory / "tier0" / "lease.table").unlink(missing_ok=True)  # its memory is not what it goes by
    tiers.start_top()
    async with feed_of(tiers.top) as feed:
        await eventually(lambda: feed.table, lambda table: table.synced)
        assert feed.table.network is not None
        assert feed.table.leases.keys() == {lease.name}
        assert feed.table.network.beside == lease.cidrs
        tiers.config.write_text(SMALL_JSON)
        await eventually(lambda: feed.table.network, lambda network: network is not None and not network.beside)
        assert feed.table.leases.keys() == {lease.name}
    assert await pending(tiers.top) == []


async def test_the_service_of_a_node_moves_that_node_only(tmp_path: Path) -> None:
    async with serving(FakeStore(), tmp_path, node="a") as running:
        for node, code in (("b", grpc.StatusCode.PERMISSION_DENIED), ("", grpc.StatusCode.NOT_FOUND)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await running.stub.RenumberNode(pb.RenumberNodeRequest(node=node))
            assert caught.value.code() is code


async def test_nobody_moves_a_pod_cidr(tmp_path: Path) -> None:
    store = FakeStore(make_lease(1, node="a"))
    async with serving(store, tmp_path, node="a") as running:
        network = parse_network('{"Network":"10.99.0.0/16","Backend":{"Type":"vxlan"}}', leases_subnets=False)
        running.tells(network=network)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.RenumberNode(pb.RenumberNodeRequest())
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "its podCIDR, which cannot change: put the network" in (caught.value.details() or "")
        assert store.released == []
