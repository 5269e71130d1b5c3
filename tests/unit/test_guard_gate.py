"""From the store to the table: what is held back, asking a second time, and what an operator may do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from services.core.errors import LostRace, NotFound, NotYet, Unavailable
from services.core.lease import Lease
from services.core.network import parse_network
from services.core.table import Removed, StoreStatus, Table, Upserted
from services.lease import metrics
from services.lease.broker import Broker
from services.lease.guard.gate import Gate, GuardSettings
from services.lease.store import Changed, Snapshot
from tests.lease_examples import NETWORK, SMALL, by_name, make_lease
from tests.lease_service import FakeStore
from tests.virtual_time import now, run_virtually

LEASES = [make_lease(number) for number in range(1, 21)]
SECONDS = 30.0


class World(FakeStore):
    """A store with twenty leases, and what a lease service makes of it."""

    def __init__(self) -> None:
        super().__init__(*LEASES)
        self.broker = Broker("fake", epoch="epoch")
        self.gate = Gate(self, self.broker, GuardSettings(0.5, SECONDS), clock=lambda: 1000 + now())
        self.listings = 0

    async def relist(self) -> Snapshot:
        self.listings += 1
        return await super().relist()

    async def lose(self, *leases: Lease) -> None:
        """These are gone, and the watch says so."""
        for lease in leases:
            del self.leases[lease.name]
        self.events.put_nowait(Changed(tuple(Removed(lease.name) for lease in leases)))
        await asyncio.sleep(0.001)

    @property
    def table(self) -> int:
        return len(self.broker.table.leases)


@asynccontextmanager
async def following() -> AsyncIterator[World]:
    world = World()
    world.events.put_nowait(Snapshot(dict(world.leases), NETWORK))
    task = asyncio.create_task(world.gate.follow())
    await asyncio.sleep(0.001)
    yield world
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


def played(scene: Callable[[World], Awaitable[None]]) -> None:
    """Plays it in virtual time."""

    async def play() -> None:
        async with following() as world:
            await scene(world)

    run_virtually(play())


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    with capture_logs() as lines:
        yield lines


def texts(lines: list[EventDict]) -> list[str]:
    return [line["event"] for line in lines if "network" not in line["event"]]


def counts() -> dict[str, float]:
    (family,) = metrics.GUARDED_REMOVALS.collect()
    return {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}


def test_defect_01_peers_stay_until_the_store_says_a_second_time_that_they_are_gone(lines: list[EventDict]) -> None:
    before = counts()

    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        assert (world.table, len(world.gate.held), world.listings) == (20, 20, 0)
        assert world.gate.held_since == pytest.approx(1000, abs=0.1)
        assert world.gate.held_reason == (
            "20 leases went from the fake store at once and are kept; it is asked again in 30 s, unless an operator "
            "confirms that they are gone"
        )
        await asyncio.sleep(SECONDS - 1)
        assert world.table == 20
        await asyncio.sleep(2)
        assert (world.table, world.gate.held, world.listings) == (0, [], 1)
        assert (world.gate.held_since, world.gate.held_reason) == (None, "")
        await asyncio.sleep(10 * SECONDS)
        assert world.listings == 1

    played(scene)
    assert texts(lines) == [
        "many leases are gone from the store at once: they stay until it says so again",
        "removals that were held back are carried out",
    ]
    after = counts()
    assert {key: after[key] - before.get(key, 0) for key in after} == {
        "held": 20,
        "confirmed_by_listing": 20,
        **{key: 0 for key in after if key not in ("held", "confirmed_by_listing")},
    }


def test_what_is_there_in_the_second_listing_stays_and_is_asked_for_again(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        world.leases = by_name(LEASES[0])
        await asyncio.sleep(SECONDS + 1)
        assert world.gate.held == [LEASES[0].name]
        assert "the second listing has some of them" in world.gate.held_reason
        await asyncio.sleep(3 * SECONDS)
        assert world.listings == 4
        world.events.put_nowait(Changed((Upserted(LEASES[0]),)))
        await asyncio.sleep(0.001)
        assert (world.table, world.gate.held) == (1, [])

    played(scene)
    assert texts(lines)[1:] == [
        "removals that were held back are carried out",
        "removals stay held back",
        "no removal is held back any more",
    ]


def test_while_the_store_is_away_what_is_held_stays_held_and_the_status_says_so(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        world.fault = Unavailable("etcd at 127.0.0.1 refuses connections")
        await asyncio.sleep(SECONDS + 60)
        assert world.table == 20
        assert "the second listing cannot be had: etcd at 127.0.0.1 refuses connections" in world.gate.held_reason
        assert world.listings < 20
        world.fault = None
        await asyncio.sleep(10)
        assert world.table == 0

    played(scene)
    assert texts(lines)[1:-1] == ["removals stay held back"]


def test_while_there_is_no_network_what_is_held_stays_held_for_no_node_could_take_its_lease_again(
    lines: list[EventDict],
) -> None:
    """As after `etcdctl del --prefix /coreos.com/network`, or with an etcd that comes back empty."""

    async def scene(world: World) -> None:
        listing, error = world.relist, "there is no network configuration"

        async def empty() -> Snapshot:
            return replace(await listing(), network=None, network_error=error)

        world.relist = empty  # type: ignore[method-assign]  # the whole prefix is gone
        world.events.put_nowait(Changed(network_error=error))
        await world.lose(*LEASES)
        await asyncio.sleep(10 * SECONDS + 1)
        assert (world.table, world.listings) == (20, 10)
        assert "the store has no network configuration that can be used; it is asked again" in world.gate.held_reason
        world.relist = listing  # type: ignore[method-assign]  # somebody writes it
        world.events.put_nowait(Changed(network=NETWORK))
        await asyncio.sleep(SECONDS - 1)
        assert (world.table, world.listings) == (20, 10), "the nodes have their full time"
        await asyncio.sleep(2)
        assert (world.table, world.listings) == (0, 11)

    played(scene)
    assert texts(lines)[1:] == ["removals stay held back", "removals that were held back are carried out"]


def test_a_store_that_never_answers_the_second_listing_is_asked_again() -> None:
    async def scene(world: World) -> None:
        answers = world.relist

        async def silence() -> Snapshot:
            await asyncio.sleep(1e9)
            raise AssertionError

        world.relist = silence  # type: ignore[method-assign]  # the store freezes
        await world.lose(*LEASES)
        await asyncio.sleep(SECONDS + 61)
        assert "the store does not answer" in world.gate.held_reason
        world.relist = answers  # type: ignore[method-assign]  # and thaws
        await asyncio.sleep(10)
        assert world.table == 0

    played(scene)


def test_leases_that_come_back_meanwhile_are_never_removed(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        for lease in LEASES:
            world.leases[lease.name] = lease
            world.events.put_nowait(Changed((Upserted(lease),)))
        await asyncio.sleep(2 * SECONDS)
        assert (world.table, world.gate.held, world.listings) == (20, [], 0)

    played(scene)
    assert texts(lines)[1:] == ["no removal is held back any more"]
    assert lines[-1]["of"] == 20


def test_a_second_burst_is_given_its_full_time() -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        await asyncio.sleep(SECONDS - 5)
        for lease in LEASES:
            world.leases[lease.name] = lease
        world.events.put_nowait(Snapshot(dict(world.leases), NETWORK))
        await asyncio.sleep(1)
        await world.lose(*LEASES)
        await asyncio.sleep(SECONDS - 5)
        assert (world.table, world.listings) == (20, 0)
        await asyncio.sleep(10)
        assert world.table == 0

    played(scene)


def test_what_goes_while_the_second_listing_is_read_waits_for_the_next() -> None:
    async def scene(world: World) -> None:
        answer = world.relist

        async def slow() -> Snapshot:
            listed = await answer()
            await asyncio.sleep(2)
            return listed

        world.relist = slow  # type: ignore[method-assign]  # the store is slow
        last = LEASES[-1]
        await world.lose(*LEASES[:-1])
        await asyncio.sleep(SECONDS + 1)
        await world.lose(last)
        await asyncio.sleep(2)
        assert world.gate.held == [last.name]
        assert ";" not in world.gate.held_reason.partition("; it is asked again")[0]
        await asyncio.sleep(SECONDS + 3)
        assert world.table == 0

    played(scene)


def test_what_is_held_and_then_released_counts_as_released(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        before = counts()
        await world.lose(*LEASES)
        world.events.put_nowait(Changed(released=frozenset(lease.name for lease in LEASES[:5])))
        await asyncio.sleep(0.001)
        assert (world.table, len(world.gate.held)) == (15, 15)
        assert counts()["released"] - before.get("released", 0) == 5
        assert counts().get("returned", 0) == before.get("returned", 0)

    played(scene)


def test_an_operator_confirms_at_once(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        with pytest.raises(NotYet, match="no removal is held back"):
            world.gate.confirm()
        await world.lose(*LEASES)
        assert world.gate.confirm() == sorted(lease.name for lease in LEASES)
        assert world.table == 0
        await asyncio.sleep(2 * SECONDS)
        assert world.listings == 0

    played(scene)
    assert lines[-1]["confirmed_by"] == "operator"


def test_a_network_that_refuses_every_lease_empties_no_table_at_once() -> None:
    async def scene(world: World) -> None:
        world.gate.take(Changed(network=SMALL))  # 10.5.0.0/16, and the leases lie in 10.0.0.0/16
        assert (world.table, len(world.gate.quarantine.keys), len(world.gate.held)) == (20, 20, 20)
        assert world.broker.table.network == SMALL
        await asyncio.sleep(SECONDS - 1)
        world.gate.take(Changed(network=NETWORK))
        assert (world.table, len(world.gate.quarantine.keys), len(world.gate.held)) == (20, 0, 0)

    played(scene)


def test_the_store_going_away_holds_nothing_back() -> None:
    async def scene(world: World) -> None:
        world.gate.take(StoreStatus("fake", False, "cable cut"))
        assert world.gate.held == []
        assert not world.broker.store_status.connected

    played(scene)


def test_a_quarantined_key_is_deleted_as_it_was_seen() -> None:
    async def scene(world: World) -> None:
        half = Lease("half", "", (LEASES[0].subnets[0],))
        world.gate.take(Changed((Upserted(half),), refused={"foo": "is no lease"}))
        await world.gate.discard("foo")
        await world.gate.discard("half")
        assert world.discarded == [("foo", "is no lease"), ("half", half)]
        with pytest.raises(NotFound, match="not quarantined"):
            await world.gate.discard(LEASES[0].name)
        world.fault = LostRace("it is something else by now")
        with pytest.raises(LostRace):
            await world.gate.discard("foo")

    played(scene)


def test_the_configuration_is_logged_when_it_changes_and_when_it_is_invalid(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        world.gate.take(Changed(network_error="is no JSON"))
        world.gate.take(Changed(network_error="is no JSON"))
        world.gate.take(Changed(network=NETWORK))
        world.gate.take(Changed(network=NETWORK))

    played(scene)
    good, bad = "the network configuration is in force", "the network configuration in the store is not in force"
    assert [line["event"] for line in lines] == [good, bad, good]
    assert lines[1]["reason"] == "is no JSON"


def remembered(kind: str = "fake") -> Table:
    return Table(by_name(*LEASES), NETWORK, store=StoreStatus(kind, True), synced=True)


@pytest.mark.parametrize(
    ("memory", "first", "held"),
    [
        (remembered(), Snapshot({}, NETWORK), 20),
        (remembered(), Snapshot({}, None, "there is no network"), 20),
        (remembered(), Snapshot(by_name(*LEASES[:10]), NETWORK), 0),
        (remembered(), Snapshot({}, parse_network('{"Network":"10.0.0.0/8","Backend":{"Type":"host-gw"}}')), 0),
        (remembered("etcd"), Snapshot({}, NETWORK), 0),
        (Table(), Snapshot({}, NETWORK), 0),
    ],
)
def test_defect_01_a_process_that_starts_compares_with_what_the_one_before_it_served(
    memory: Table, first: Snapshot, held: int
) -> None:
    async def scene() -> None:
        store, broker = FakeStore(), Broker("fake", epoch="epoch")
        gate = Gate(
            store, broker, GuardSettings(0.5, SECONDS), recall=lambda served: memory, clock=lambda: 1000 + now()
        )
        gate.take(Changed(network_error="not yet"))
        gate.take(first)
        assert len(gate.held) == held
        assert len(broker.table.leases) == held + len(first.leases)
        assert broker.table.synced
        assert len(gate.confirm() if held else []) == held
        gate.take(Snapshot({}, NETWORK))
        assert len(gate.held) == len(first.leases)

    run_virtually(scene())
