"""Whatever happens in whatever order: the kernel ends as the leases say, and what is not ours is never touched."""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from flannelette.services.dataplane.backends.backend import route_metric
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route
from flannelette.services.dataplane.peers import PeerContext
from tests.examples.dataplane import NAMES, FakeKernel, lease, route, subnet
from tests.examples.programming import Node
from tests.examples.programming_cases import HOST_GW, VXLAN

PEERS = (2, 3, 4, 5)
STATIC, BOOT, OURS = 4, 3, 77


def cidr(number: int) -> str:
    return f"10.5.{number}.0/24"


def metric(number: int) -> int:
    return route_metric(subnet(cidr(number)).cidr)


@dataclass(frozen=True)
class Leased:
    """The node's lease is there now, with this MAC and this address."""

    number: int
    mac: int
    host: int


@dataclass(frozen=True)
class Gone:
    """The node's lease is gone."""

    number: int


@dataclass(frozen=True)
class Foreign:
    """Somebody makes a route that is not ours, and an audit sees it."""

    route: Route


@dataclass(frozen=True)
class Stray:
    """Somebody makes something in our domain."""

    item: KernelObject


@dataclass(frozen=True)
class Lost:
    """Of what is ours in the kernel, every so-manieth is taken away."""

    every: int


@dataclass(frozen=True)
class Refusing:
    """From now on the kernel refuses everything of these nodes."""

    numbers: frozenset[int]


@dataclass(frozen=True)
class Audit:
    """Everything is compared."""


Event: TypeAlias = Leased | Gone | Foreign | Stray | Lost | Refusing | Audit

numbers = st.sampled_from(PEERS)
foreign_routes = st.builds(
    lambda number, where, height, protocol: route(
        f"{cidr(number)} {where}" + (f" metric {height(number)}" if height(number) else ""), protocol
    ),
    numbers,
    st.sampled_from(["via 10.99.0.77 dev eth0", "dev other0"]),
    st.sampled_from([lambda _: 0, metric, lambda number: metric(number) + 1, lambda _: 70_000]),
    st.sampled_from([STATIC, BOOT, 186]),
) | st.sampled_from(
    [
        route("192.168.77.0/24 via 10.99.0.12 dev eth0", BOOT),
        route("10.5.0.0/16 dev other0", STATIC),
        route("10.5.2.0/25 via 10.99.0.12 dev eth0", STATIC),
        route("10.5.3.0/24 via 10.5.3.0 dev flannel.1 onlink", STATIC),
    ]
)  # fmt: skip - one row per route
strays = st.sampled_from(
    [
        route("10.5.2.0/24 via 10.5.2.0 dev flannel.1 onlink", BOOT),
        route("10.5.200.0/24 via 10.5.200.0 dev flannel.1 onlink", BOOT),
        route("10.5.200.0/24 via 10.99.0.12 dev eth0 metric 9", OURS),
        route("10.6.0.0/24 via 10.99.0.12 dev eth0", OURS),
        Neighbour(bytes((10, 5, 2, 0)), bytes(6), 2, 3),
        Neighbour(bytes((10, 5, 200, 0)), bytes(6), 2, 3),
        FdbEntry(bytes.fromhex("020000000001"), bytes((10, 99, 0, 99)), 3),
        FdbEntry(bytes.fromhex("0200000000ff"), bytes((10, 99, 0, 99)), 3),
    ]
)  # fmt: skip - one row per object
events = st.one_of(
    st.builds(Leased, numbers, st.integers(1, 3), st.integers(12, 14)),
    st.builds(Gone, numbers),
    st.builds(Foreign, foreign_routes),
    st.builds(Stray, strays),
    st.builds(Lost, st.integers(1, 4)),
    st.builds(Refusing, st.frozensets(numbers)),
    st.just(Audit()),
)


class Story(Node[FakeKernel]):
    """A node, and what happens to its leases and its kernel."""

    def __init__(self, context: PeerContext) -> None:
        super().__init__(FakeKernel(), context)
        self.kind = context.backend.lease_type
        self.foreign: dict[Hashable, Route] = {}

    async def happen(self, event: Event) -> None:
        match event:
            case Leased(number, mac, host):
                part = subnet(cidr(number), f"10.99.0.{host}", f"02:00:00:00:00:{mac:02x}")
                new = lease(part, node=f"n{number}", kind=self.kind)
                self.leases[new.name] = new
                await self.program(new.name)
            case Gone(number):
                name = lease(subnet(cidr(number))).name
                self.leases.pop(name, None)
                await self.program(name)
            case Foreign(made):
                self.foreign[made.key] = made
                self.kernel.put(made)
                await self.program()
            case Stray(item):
                if item.key not in self.foreign:
                    self.kernel.put(item)
            case Lost(every):
                ours = self.kernel.objects - set(self.foreign.values())
                self.kernel.objects -= set(sorted(ours)[::every])
            case Refusing(numbers):
                self.kernel.refused = {
                    item.key: "refused"
                    for peer in self.programmer.peers.values()
                    if peer.lease.node in {f"n{number}" for number in numbers}
                    for item in peer.objects
                }
            case Audit():
                await self.program()
        assert set(self.foreign.values()) <= self.kernel.objects, "what is not ours is never touched"

    def expected(self) -> set[KernelObject]:
        """Everything that the peers need and a foreign route leaves room for."""
        wanted = {item for peer in self.programmer.peers.values() for item in peer.objects}
        possible = {item for item in wanted if item.key not in self.foreign}
        return {*possible, *self.foreign.values()}

    def shown(self) -> list[str]:
        return sorted(text(item, NAMES) for item in self.kernel.objects)


def play(story: Story, script: Sequence[Event]) -> None:
    async def main() -> None:
        await story.program()
        for event in script:
            await story.happen(event)
        await story.happen(Refusing(frozenset()))
        await story.happen(Audit())
        assert story.shown() == sorted(text(item, NAMES) for item in story.expected())
        assert not await story.programmer.plan(story.context, story.leases)
        assert story.programmer.reconciler.failures == {}
        assert story.programmer.reconciler.programmed == story.kernel.objects - set(story.foreign.values())

    with capture_logs():  # which nobody wants to read
        asyncio.run(main())


@given(st.lists(events, max_size=20))
@example([Leased(2, 1, 12), Leased(3, 1, 13), Audit(), Gone(2)])
@example([Leased(2, 1, 12), Leased(3, 1, 14), Lost(1)])
@example([Leased(2, 1, 12), Leased(2, 2, 12), Lost(1), Leased(2, 3, 13)])
@example([Leased(2, 1, 12), Refusing(frozenset([2])), Leased(2, 2, 13), Gone(2)])
def test_vxlan_ends_as_the_leases_say_whatever_happened_before(script: list[Event]) -> None:
    play(Story(VXLAN), script)


@given(st.lists(events, max_size=20))
def test_host_gw_ends_as_the_leases_say_whatever_happened_before(script: list[Event]) -> None:
    # Without a device of ours, only protocol and value tell what is ours: the strays on flannel.1 are foreign.
    told = [Foreign(e.item) if isinstance(e, Stray) and isinstance(e.item, Route) else e for e in script]
    kept = [e for e in told if not isinstance(e, Stray) and not (isinstance(e, Foreign) and e.route.protocol == OURS)]
    play(Story(HOST_GW), kept)
