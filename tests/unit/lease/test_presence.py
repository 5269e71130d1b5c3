"""A node is connected while one of its dataplane's streams is open: what ListNodes says of it."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Upserted
from tests.examples.leases import NETWORK, by_name, make_lease
from tests.services.lease import listing
from tests.stores.played import PlayedService

A, B, C = make_lease(1), make_lease(2), make_lease(3)


class Clock:
    """The time, which the test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def stream(service: PlayedService, node: str) -> AsyncGenerator[None, None]:
    """An open stream of the node's dataplane, or (empty) one that is no dataplane's."""
    async with aclosing(service.watch_as(node) if node else service.watch()) as messages:
        await anext(messages)
        yield


async def connected(service: PlayedService) -> dict[str, bool | None]:
    """Whether each node is connected; None: that is not said."""
    nodes = (await service.call("ListNodes")).nodes
    return {node.name: node.connected if node.HasField("connected") else None for node in nodes}


async def test_a_node_with_several_streams_is_there_until_the_last_one_ends() -> None:
    service = PlayedService(A)
    async with stream(service, "node1"), stream(service, ""):
        async with stream(service, "node1"), stream(service, "node2"):
            assert await connected(service) == {"node1": True, "node2": True}
        assert await connected(service) == {"node1": True}, "of node2 there is nothing to say: it has no lease"
    assert await connected(service) == {"node1": False}


async def test_where_the_store_tells_a_node_may_be_connected_to_another_service() -> None:
    clock = Clock()
    service = PlayedService(A, B, C, now=clock)
    service.elsewhere("node1", "node2")
    assert await connected(service) == {"node1": True, "node2": True, "node3": False}
    async with stream(service, "node1"):
        assert (await connected(service))["node1"]
    clock.now += 59
    assert not (await connected(service))["node1"], "its session outlives it, we know better"
    clock.now += 1
    assert (await connected(service))["node1"], "by now it is another service that says so"


async def test_who_left_a_day_ago_is_forgotten() -> None:
    clock = Clock()
    service = PlayedService(A, B, now=clock)
    for node in ("node1", "node2"):
        async with stream(service, node):
            pass
        clock.now += 50_000
        assert (await connected(service))[node] is False
    async with stream(service, "node3"):
        pass
    assert await connected(service) == {"node1": None, "node2": False}


async def test_of_a_node_that_may_be_connected_elsewhere_nothing_is_said() -> None:
    """As behind another relay; that it was connected here once is enough to say that it is not any more."""
    service = PlayedService(A, B)
    async with stream(service, A.node):
        pass
    assert await connected(service) == {A.node: False, B.node: None}
    service.elsewhere()
    assert await connected(service) == {A.node: False, B.node: False}
    own = PlayedService(A, B, node=B.node)
    assert await connected(own) == {A.node: None, B.node: False}, "the one node that is served connects to us"


async def test_a_node_for_which_a_subnet_is_reserved_is_not_missed_before_it_has_joined() -> None:
    parts = tuple(replace(each, public_address=None) for each in B.subnets)
    expected: Lease = replace(B, subnets=parts, reserved=True)
    service = PlayedService(A, expected)
    service.elsewhere()
    assert await connected(service) == {A.node: False, B.node: None}
    async with stream(service, B.node):
        assert await connected(service) == {A.node: False, B.node: True}
    service.tells(Upserted(replace(B, reserved=True)))
    assert await connected(service) == {A.node: False, B.node: False}
    service.take(listing(by_name(A), NETWORK))
    assert await connected(service) == {A.node: False}
