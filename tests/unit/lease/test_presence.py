"""A node is connected while one of its dataplane's streams is open."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace

from flannelette.services.lease.api.service import list_nodes
from flannelette.services.lease.progress.connected import ALIVE_SECONDS, ConnectedNodes
from flannelette.services.lease.stores.store import Snapshot
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.lease.watch.streams import watch_all
from tests.examples.leases import NETWORK, by_name, make_lease


class Followed:
    """Notes who came and went."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_connect(self, node: str) -> None:
        self.heard.append(f"{node} came")

    def on_disconnect(self, node: str) -> None:
        self.heard.append(f"{node} went")


def test_a_node_with_several_streams_is_there_until_the_last_one_ends() -> None:
    followed = Followed()
    connected_nodes = ConnectedNodes()
    connected_nodes.subscribe(followed)
    with ExitStack() as streams:
        first = streams.enter_context(ExitStack())
        first.enter_context(connected_nodes.stream("node1"))
        streams.enter_context(connected_nodes.stream("node1"))
        streams.enter_context(connected_nodes.stream("node2"))
        first.close()
        assert set(connected_nodes.nodes) == {"node1", "node2"}
        assert connected_nodes.changes == 2
    assert not connected_nodes.nodes
    assert connected_nodes.changes == 4
    assert followed.heard[:3] == ["node1 came", "node1 came", "node2 came"], "a newer stream may be a newer process"
    assert sorted(followed.heard[3:]) == ["node1 went", "node2 went"]


def test_a_stream_without_a_node_is_nobody() -> None:
    connected_nodes = ConnectedNodes()
    with connected_nodes.stream(""):
        assert not connected_nodes.nodes
    assert connected_nodes.changes == 0


async def test_a_change_wakes_who_waits_and_is_not_missed_by_who_looks_late() -> None:
    connected_nodes = ConnectedNodes()
    waiting = asyncio.create_task(connected_nodes.changed_since(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    with connected_nodes.stream("node1"):
        assert await waiting == 1
        assert await connected_nodes.changed_since(0) == 1
        late = asyncio.create_task(connected_nodes.changed_since(1))
        await asyncio.sleep(0)
        assert not late.done()
    assert await late == 2


async def test_a_watcher_is_present_from_its_first_read_until_it_is_closed() -> None:
    broker = Broker("test", epoch="e")
    broker.take(Snapshot({}, NETWORK))
    stream, onlooker = watch_all(broker, "", "node1"), watch_all(broker, "")
    await anext(stream)
    await anext(onlooker)
    assert set(broker.connected_nodes.nodes) == {"node1"}
    await stream.aclose()
    assert not broker.connected_nodes.nodes


def test_a_node_may_have_been_there_until_it_went_or_until_this_process_started() -> None:
    now = 1000.0
    connected_nodes = ConnectedNodes(clock=lambda: now)
    now += 59
    assert connected_nodes.seen_ago("node1") == 59, "a process that has just started cannot know"
    with connected_nodes.stream("node1"):
        now += 1000
        assert connected_nodes.seen_ago("node1") == 0
    now += 59
    assert connected_nodes.seen_ago("node1") == 59
    assert connected_nodes.lingering(60) == {"node1": ""}
    assert connected_nodes.lingering(59) == {}
    with connected_nodes.stream("node1"):
        assert connected_nodes.lingering(60) == {}


def test_where_the_store_tells_a_node_may_be_connected_to_another_service() -> None:
    time = 1000.0
    connected_nodes = ConnectedNodes(lambda: time)
    assert not connected_nodes.is_connected("node1")
    connected_nodes.elsewhere = {"node1", "node2"}
    assert connected_nodes.is_connected("node1")
    assert not connected_nodes.is_connected("node3")
    with connected_nodes.stream("node1"):
        assert connected_nodes.is_connected("node1")
    assert not connected_nodes.is_connected("node1"), "its session outlives it, we know better"
    time += ALIVE_SECONDS
    assert connected_nodes.is_connected("node1"), "by now it is another service that says so"


def test_who_left_long_ago_is_forgotten() -> None:
    time = 1000.0
    connected_nodes = ConnectedNodes(lambda: time)
    for number in range(100):
        with connected_nodes.stream(f"node{number}"):
            pass
        time += 8_640.0
    assert len(connected_nodes.lingering(1e9)) <= 11
    assert connected_nodes.seen_ago("node0") > 86_400


def test_of_a_node_that_may_be_connected_elsewhere_nothing_is_said() -> None:
    """As behind another relay; that it was connected here once is enough to say that it is not any more."""
    broker = Broker("fake", epoch="e")
    here, there = make_lease(1), make_lease(2)
    broker.take(Snapshot(by_name(here, there), NETWORK))
    with broker.connected_nodes.stream(here.node):
        pass
    listed = {node.name: node for node in list_nodes(broker, "").nodes}
    assert listed[here.node].HasField("connected")
    assert not listed[here.node].connected
    assert not listed[there.node].HasField("connected")
    assert list_nodes(broker, there.node).nodes[-1].HasField("connected"), (
        "the one node that is served connects to us"
    )
    broker.connected_nodes.elsewhere = frozenset()
    assert all(node.HasField("connected") for node in list_nodes(broker, "").nodes)


def test_a_node_for_which_a_subnet_is_reserved_is_not_missed_before_it_has_joined() -> None:
    broker = Broker("fake", epoch="e")
    taken = make_lease(1)
    parts = tuple(replace(each, public_address=None) for each in make_lease(2).subnets)
    expected = replace(make_lease(2), subnets=parts, reserved=True)
    broker.take(Snapshot(by_name(taken, expected), NETWORK))
    broker.connected_nodes.elsewhere = frozenset()
    listed = {node.name: node for node in list_nodes(broker, "").nodes}
    assert listed[taken.node].HasField("connected")
    assert not listed[expected.node].HasField("connected")
    with broker.connected_nodes.stream(expected.node):
        pass
    broker.take(Snapshot(by_name(taken, replace(make_lease(2), reserved=True)), NETWORK))
    assert not {node.name: node for node in list_nodes(broker, "").nodes}[expected.node].connected
    assert {node.name: node for node in list_nodes(broker, "").nodes}[expected.node].HasField("connected")
