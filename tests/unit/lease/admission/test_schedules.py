"""Random schedules through the whole gate: the table has all that is served, more only while it is held back."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import NotYet, Unavailable
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Change, Removed, StoreStatus, Upserted
from flannelette.services.core.network import NetworkConfig, parse_network
from tests.examples.leases import SMALL, by_name
from tests.services.lease import FakeStore, listing
from tests.stores.played import PlayedService
from tests.virtual_time import run_virtually

OTHER = parse_network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')
NAMES = [
    *(f"10.5.{number}.0-24" for number in range(1, 25)),
    *("10.5.1.0-25", "10.5.2.0-23", "10.5.16.0-20", "10.5.0.0-17", "10.6.1.0-24", "10.6.2.0-24", "10.6.2.0-25"),
]


def lease(name: str, node: str = "", claim_order: int = 0) -> Lease:
    return Lease(name, node, (Subnet(ip_network(name.replace("-", "/"))),), claim_order=claim_order)


@dataclass(frozen=True)
class Put:
    name: str
    node: str = ""


@dataclass(frozen=True)
class Delete:
    names: tuple[str, ...]


class World(FakeStore):
    """A store that others write, and whose watch may lose its place."""

    kind = "test"

    def __init__(self) -> None:
        super().__init__()
        self.network = SMALL
        self.ages: dict[str, int] = {}
        self.ticks = count(1)
        self.service = PlayedService(store=self, listed=False, share=0.5)
        self.change(tuple(Put(name) for name in NAMES[:20]))

    async def relist(self) -> Any:
        self._fail()
        return self.listing

    @property
    def listing(self) -> Any:
        """All that it holds, as its watch says it."""
        return listing(dict(self.leases), self.network)

    def change(self, writes: Sequence[Put | Delete]) -> tuple[Change, ...]:
        """Writes happen; returns what a watch says of them."""
        changes: list[Change] = []
        for write in writes:
            if isinstance(write, Put):
                self.ages.setdefault(write.name, next(self.ticks))
                self.leases[write.name] = lease(write.name, write.node, self.ages[write.name])
                changes.append(Upserted(self.leases[write.name]))
            else:
                gone = [name for name in write.names if self.leases.pop(name, None)]
                for name in gone:
                    del self.ages[name]
                changes += map(Removed, gone)
        return tuple(changes)

    @property
    def served(self) -> dict[str, Lease]:
        """What a service serves that knows nothing of what was before."""
        fresh = PlayedService(listed=False)
        fresh.take(self.listing)
        return dict(fresh.table)


names = st.sampled_from(NAMES)
puts = st.builds(Put, names, st.sampled_from(["", "", "n1", "n2"]))
deletes = st.builds(lambda some: Delete(tuple(sorted(some))), st.sets(names, max_size=30))
writes = st.lists(puts | deletes, min_size=1, max_size=5).map(tuple)
steps = st.one_of(
    writes,
    writes,
    st.just((Delete(tuple(NAMES)),)),
    st.sampled_from([SMALL, OTHER, 0.5, 3.0, 40.0, "confirm", "away", "back"]),
    st.tuples(st.just("unseen"), writes),
)


@given(st.lists(steps, max_size=15))
def test_the_table_has_what_is_served_and_beyond_that_only_what_is_held_back(schedule: Sequence[object]) -> None:
    async def play() -> None:
        world = World()
        world.service.take(world.listing)
        task = asyncio.create_task(world.service.follow())
        for step in schedule:
            await happen(world, step)
            await assert_table(world)
        world.fault = None
        await asyncio.sleep(100)
        await assert_table(world)
        assert not (await world.service.call("ListQuarantine")).held_removals
        task.cancel()
        await asyncio.wait([task])

    run_virtually(play())


async def happen(world: World, step: object) -> None:
    match step:
        case NetworkConfig():
            world.network = step
            world.service.tells(network=step)
        case float():
            await asyncio.sleep(step)
        case "confirm":
            with suppress(NotYet):  # nothing is held back
                await world.service.call("ConfirmRemoval")
        case "away":
            world.fault = Unavailable("cable cut")
            world.service.take(StoreStatus("test", False, "cable cut"))
        case "back":
            world.fault = None
            world.service.take(StoreStatus("test", True))
        case ("unseen", changes):
            assert isinstance(changes, tuple)
            world.change(changes)
            world.service.take(world.listing)
        case tuple():
            world.service.tells(*world.change(step))
        case _:
            raise AssertionError(step)


async def assert_table(world: World) -> None:
    table, served = world.service.table, world.served
    assert {name: held for name, held in table.items() if name in served} == served
    answer = await world.service.call("ListQuarantine")
    assert sorted(table.keys() - served.keys()) == list(answer.held_removals)
    assert {key.key for key in answer.keys} == {name for name in world.leases if name not in served}


def test_the_names_are_leases() -> None:
    assert len(by_name(*map(lease, NAMES))) == len(NAMES)
