"""From the store to the table: what an operator may do, what passes at once, and what a new process remembers."""

import asyncio
from dataclasses import replace
from ipaddress import ip_network

import pytest
from structlog.typing import EventDict

from flannelette.services.core.errors import LostRace, NotFound, NotYet
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import StoreStatus, Table, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from tests.examples.leases import NETWORK, SMALL, by_name
from tests.services.lease import listing, news
from tests.stores.guard_scene import LEASES, SECONDS, World, counts, played


def test_what_is_held_and_then_released_counts_as_released(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        before = counts()
        await world.lose(*LEASES)
        world.tells(released=frozenset(lease.name for lease in LEASES[:5]))
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
        flannelds = (Upserted(lease.held_by("", 0)) for lease in world.broker.table.leases.copy().values())
        world.take(news(*flannelds))
        world.take(news(network=SMALL))  # 10.5.0.0/16, and the leases lie in 10.0.0.0/16
        assert (world.table, len(world.gate.quarantine.keys), len(world.gate.held)) == (20, 20, 20)
        assert world.broker.table.network == SMALL
        await asyncio.sleep(SECONDS - 1)
        world.take(news(network=NETWORK))
        assert (world.table, len(world.gate.quarantine.keys), len(world.gate.held)) == (20, 0, 0)

    played(scene)


def test_the_store_going_away_holds_nothing_back() -> None:
    async def scene(world: World) -> None:
        world.take(StoreStatus("fake", False, "cable cut"))
        assert world.gate.held == []
        assert not world.broker.store_status.connected

    played(scene)


def test_a_quarantined_key_is_deleted_as_it_was_seen() -> None:
    async def scene(world: World) -> None:
        stray = Lease("stray", "", (Subnet(ip_network("192.168.7.0/24")),))
        world.take(news(Upserted(stray), refused={"foo": "is no lease"}))
        await world.gate.discard("foo")
        await world.gate.discard("stray")
        assert world.discarded == [("foo", "is no lease"), ("stray", stray)]
        with pytest.raises(NotFound, match="not quarantined"):
            await world.gate.discard(LEASES[0].name)
        world.fault = LostRace("it is something else by now")
        with pytest.raises(LostRace):
            await world.gate.discard("foo")

    played(scene)


def test_the_configuration_is_logged_when_it_changes_and_when_it_is_invalid(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        world.take(news(network_error="is not valid JSON"))
        world.take(news(network_error="is not valid JSON"))
        world.take(news(network=NETWORK))
        world.take(news(network=NETWORK))

    played(scene)
    good, bad = "the network configuration is in force", "the network configuration in the store is not in force"
    assert [line["event"] for line in lines] == [good, bad, good]
    assert lines[1]["reason"] == "is not valid JSON"


def remembered(kind: str = "fake") -> Table:
    return Table(by_name(*LEASES), NETWORK, store=StoreStatus(kind, True), synced=True)


@pytest.mark.parametrize(
    ("memory", "first", "network", "held"),
    [
        (remembered(), {}, NETWORK, 20),
        (remembered(), {}, None, 20),
        (remembered(), by_name(*LEASES[:10]), NETWORK, 0),
        (remembered(), {}, parse_network('{"Network":"10.0.0.0/8","Backend":{"Type":"host-gw"}}'), 0),
        (remembered("etcd"), {}, NETWORK, 0),
        (Table(), {}, NETWORK, 0),
    ],
)
def test_a_process_that_starts_compares_with_what_the_one_before_it_served(
    memory: Table, first: dict[str, Lease], network: NetworkConfig | None, held: int
) -> None:
    """A regression test of defect 1 of flannel v0.28."""

    async def scene(world: World) -> None:
        world.restarted(memory)
        world.take(news(network_error="not yet"), listing(first, network))
        assert len(world.gate.held) == held
        assert len(world.served) == held + len(first)
        assert len(world.gate.confirm() if held else []) == held
        world.take(listing({}, NETWORK))
        assert len(world.gate.held) == len(first)

    played(scene)


AFTER_CHANGE = replace(SMALL, revision=50)
"""Another network than the one that the leases lie in; they were last written before or after revision 50."""


def written(revision: int) -> list[Lease]:
    return [replace(lease, claim_order=revision) for lease in LEASES]


def test_leases_that_were_served_stay_though_their_nodes_write_them_together_with_a_network_change() -> None:
    """A regression test of hole 6."""

    async def scene(world: World) -> None:
        world.take(news(*map(Upserted, written(20))))
        world.take(news(*map(Upserted, written(60)), network=AFTER_CHANGE))  # as after a while without a watch
        assert (world.table, world.gate.held, world.gate.quarantine.keys) == (20, [], {})
        await asyncio.sleep(3 * SECONDS)
        assert world.table == 20

    played(scene)


def test_leases_that_a_store_lost_before_a_network_change_and_that_come_back_after_it_are_served() -> None:
    """A regression test of hole 6."""

    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        world.take(news(network=AFTER_CHANGE))
        world.take(news(*map(Upserted, written(60))))
        assert (world.table, world.gate.held, world.gate.quarantine.keys) == (20, [], {})

    played(scene)


def test_a_second_listing_that_has_them_again_since_a_network_change_takes_none_away() -> None:
    """A regression test of hole 6."""

    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        world.take(news(network=AFTER_CHANGE))
        world.listed_network = AFTER_CHANGE
        world.leases |= by_name(*written(60))  # and the watch has not told it yet
        await asyncio.sleep(SECONDS + 1)
        assert (world.listings, world.table) == (1, 20)
        world.take(news(*map(Upserted, written(60))))
        assert (world.table, world.gate.held, world.gate.quarantine.keys) == (20, [], {})

    played(scene)


def test_a_process_that_starts_serves_what_the_one_before_it_served_outside_the_network() -> None:
    """A regression test of hole 6."""

    async def scene(world: World) -> None:
        world.restarted(Table(by_name(*written(20)[:10]), AFTER_CHANGE, store=StoreStatus("fake", True), synced=True))
        world.take(listing(by_name(*written(60)), AFTER_CHANGE))
        assert set(world.served) == {lease.name for lease in LEASES[:10]}
        assert set(world.gate.quarantine.keys) == {lease.name for lease in LEASES[10:]}, "they came after the change"
        assert world.gate.held == []

    played(scene)
