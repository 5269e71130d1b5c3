"""WatchEvents against a real process: what its life looks like in the journal, who follows it, and how it ends."""

import asyncio
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1 import dataplane_pb2_grpc
from flannelette.dataplane.v1.dataplane_pb2_grpc import add_DataplaneServiceServicer_to_server
from flannelette.services.dataplane.api.service import DataplaneServicer
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.events import NodeEventKind, NodeJournal
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.runtime.events import Event
from flannelette.services.runtime.rpc.server import Server, bound
from flannelette.services.runtime.telemetry.health import Health
from tests.hosts.dataplane import VXLAN, Cluster, Running
from tests.patience import PATIENCE
from tests.waiting import contains, eventually

MAC = "06:0c:56:6d:fb:b2"


def names(events: list[pb.WatchEventsResponse]) -> list[str]:
    return [pb.EventKind.Name(event.kind).removeprefix("EVENT_KIND_") for event in events]


async def until_told(
    running: Running, kind: "pb.EventKind.ValueType", count: int = 1
) -> list[pb.WatchEventsResponse]:
    """The events of a kind, once there are so many."""
    return await eventually(lambda: running.events(kinds=[kind]), lambda events: len(events) >= count)


async def test_a_life_from_start_to_teardown_is_in_the_journal_with_what_caused_it(cluster: Cluster) -> None:
    before = time.time()
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        start = await running.events()
        assert names(start)[:2] == ["SERVICE_STARTED", "LEASE_SERVICE"]
        assert {"NETWORK", "UNDERLAY", "DEVICE", "OWN_LEASE", "RESYNC", "READINESS"} <= set(names(start))
        assert before < start[0].time.ToMicroseconds() / 1e6 < time.time()
        (device, *_) = await running.events(kinds=[pb.EVENT_KIND_DEVICE])
        assert device.what.startswith("flannel.1: ip link add flannel.1 ")
        (underlay,) = await running.events(kinds=[pb.EVENT_KIND_UNDERLAY])
        assert (underlay.what, underlay.cause) == (
            "underlay chosen: eth0, 10.99.0.11, mtu 1500", "has the default route"
        )  # fmt: skip

        name = await cluster.join("n2", "10.99.0.12", MAC, "10.5.42.0/24")
        added = await until_told(running, pb.EVENT_KIND_PEER_ADDED)
        epoch, _, newest = (await running.until(peers=1)).cursor.partition(":")  # another change may follow at once
        assert [event.what for event in added] == ["peer added: n2, 10.5.42.0/24 at 10.99.0.12"]
        assert added[0].cursor in [f"{epoch}:{number}" for number in range(1, int(newest) + 1)]
        assert added[0].cause == f"lease change, cursor {added[0].cursor}"
        assert 0 < added[0].microseconds < 10e6
        assert list(added[0].peers) == [pb.PeerName(name=name, node="n2")]

        await cluster.join("n2", "10.99.0.12", "06:0c:56:6d:fb:ff", "10.5.42.0/24")
        (changed,) = await until_told(running, pb.EVENT_KIND_PEER_CHANGED)
        assert changed.what == f"peer changed: n2, data vni 1 {MAC} -> vni 1 06:0c:56:6d:fb:ff"
        await cluster.leave("n2", name)
        await until_told(running, pb.EVENT_KIND_PEER_REMOVED)
        assert names(await running.events(peer="n2")) == ["PEER_ADDED", "PEER_CHANGED", "PEER_REMOVED"]
        assert await running.events(peer=name) == await running.events(peer="n2")

        await running.teardown()
        await until_told(running, pb.EVENT_KIND_TEARDOWN)
        await running.resync()
        (*_, resync) = await running.events(kinds=[pb.EVENT_KIND_RESYNC])
        assert resync.cause.startswith("requested by an operator")
        assert (await running.status()).repairs == 0, "what an operator removes and has made again is no repair"


async def test_the_underlay_the_network_and_the_lease_service_leave_their_traces(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        cluster.ip("addr del 10.99.0.11/16 dev eth0")
        cluster.ip("addr add 10.99.0.77/16 dev eth0")
        cluster.ip("route add default via 10.99.0.1")
        _, moved = await until_told(running, pb.EVENT_KIND_UNDERLAY, 2)
        assert moved.what == "underlay chosen: eth0, 10.99.0.77, mtu 1500"
        await running.until(peers=0)
        cluster.leases.kill()
        cluster.network_file.write_text(VXLAN.replace('"vxlan"', '"vxlan","VNI":7'))
        away = await until_told(running, pb.EVENT_KIND_LEASE_SERVICE, 2)
        assert away[1].what == "the lease service is away; the last leases stay in force"
        assert away[1].cause
        cluster.leases = cluster.start_leases()
        assert len(await until_told(running, pb.EVENT_KIND_NETWORK, 2)) == 2
        await running.until(peers=0)
        readiness = await until_told(running, pb.EVENT_KIND_READINESS, 3)
        assert [event.what for event in readiness[:2]] == ["ready", "not ready"]
        assert readiness[-1].what == "ready"
        assert (await running.status()).repairs == 0, "all of this was decided"


async def test_who_follows_gets_what_there_is_then_what_comes_and_the_end_of_the_service(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        call: Any = running.stub.WatchEvents(pb.WatchEventsRequest())
        seen = [await asyncio.wait_for(call.read(), PATIENCE) for _ in await running.events()]
        await cluster.join("n2", "10.99.0.12", MAC, "10.5.42.0/24")
        seen.append(await asyncio.wait_for(call.read(), PATIENCE))
        assert seen[-1].kind == pb.EVENT_KIND_PEER_ADDED
        position = seen[-2].position
        assert [event.position for event in await running.events(after=position)] == [seen[-1].position]
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(_drain(call), PATIENCE)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "stopping" in (ended.value.details() or "")


async def _drain(call: Any) -> None:
    while await call.read():
        pass


async def test_a_restart_keeps_the_events_and_a_kill_loses_at_most_the_last_second(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until(peers=0)
        await cluster.join("n2", "10.99.0.12", MAC, "10.5.42.0/24")
        (added,) = await until_told(running, pb.EVENT_KIND_PEER_ADDED)
        file = cluster.directory / "state" / "dataplane.events"
        await eventually(lambda: file.read_text() if file.exists() else "", contains(f'"{added.position}"'))
        before = await running.events()
    with file.open("ab") as torn:  # as if the kill had come in the middle of a write
        torn.write(b'0badc0de e:9 {"position":"')
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        told = await running.all_events()
        last = before.index(added)
        assert told[: last + 1] == before[: last + 1]
        assert not any(event.missed for event in told)
        (start, *_) = [e for e in told[1:] if e.kind == pb.EVENT_KIND_SERVICE_STARTED]
        later = await running.all_events(after=before[-1].position)  # what was not written is lost
        assert start in later
        assert not any(event in before for event in later)
        assert "events that cannot be read are left out" in running.log


async def test_a_position_that_is_none_is_refused(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.status()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.events(after="yesterday")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@dataclass
class Journaled:
    """As much of a dataplane as WatchEvents needs."""

    journal: NodeJournal


async def test_a_client_that_takes_nothing_hinders_nobody_and_is_told_what_it_has_missed(tmp_path: Path) -> None:
    stopping, journal = asyncio.Event(), NodeJournal(1000)
    controller = cast("Controller", Journaled(journal))
    with Inspector() as unused:
        servicer = DataplaneServicer(controller, Prober(controller, 0), unused, Health(), stopping)
    server = Server(
        {"flannelette.dataplane.v1.DataplaneService": partial(add_DataplaneServiceServicer_to_server, servicer)}
    )
    with bound(server.grpc, f"unix:{tmp_path}/s"):
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/s") as channel:
            call: Any = dataplane_pb2_grpc.DataplaneServiceStub(channel).WatchEvents(pb.WatchEventsRequest())
            journal.note(Event(NodeEventKind.RESYNC, "first"))
            assert (await asyncio.wait_for(call.read(), PATIENCE)).what == "first"
            for _ in range(100):  # 200 times what a connection holds that nobody reads from
                for _ in range(100):
                    journal.note(Event(NodeEventKind.RESYNC, 1000 * "."))
                await asyncio.sleep(0)
            journal.note(Event(NodeEventKind.RESYNC, "last"))
            taken, missed = 1, 0
            while (event := await asyncio.wait_for(call.read(), PATIENCE)).what != "last":
                taken, missed = taken + 1, missed + event.missed
            assert missed + event.missed > 5000
            assert taken + 1 + missed + event.missed == journal.last == 10_002
        stopping.set()
        await server.stop()
