"""Whatever happens in whatever order: the kernel ends as the leases say, and what is not ours is never touched."""

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.core.lease import Lease
from services.core.plan import Plan
from services.dataplane.backends.backend import Backend, Links
from services.dataplane.backends.host_gw import HostGw
from services.dataplane.backends.metric import route_metric
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.journal import Journal
from services.dataplane.netlink.notation import text
from services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route, steps
from services.dataplane.netlink.socket import Contents, KernelSocket, Mark
from services.dataplane.overlay import Overlay
from services.dataplane.reconciler import Reconciler
from services.dataplane.situation import Situation
from tests.dataplane_examples import HOST_GW_LINKS, LINKS, NAMES, as_mark, lease, route, subnet
from tests.lease_examples import SMALL

PEERS = (2, 3, 4, 5)
STATIC, BOOT, OURS = 4, 3, 77


@dataclass
class Kernel(KernelSocket):
    """The kernel's tables as they behave: one object in a slot, and a delete matches more than it seems to say."""

    slots: dict[Hashable, KernelObject] = field(default_factory=dict)
    refusing: frozenset[Hashable] = frozenset()
    """Slots of which nothing is put or deleted."""

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        failed: dict[KernelObject, str] = {}
        for verb, items in steps(plan):
            missed = {item.destination for item in failed if isinstance(item, Route)}
            for item in items:
                is_kept = verb == "del" and isinstance(item, Route) and item.destination in missed
                if item.slot in self.refusing or is_kept:
                    failed[item] = "refused"
                elif verb == "replace":
                    self.slots[item.slot] = item
                else:
                    self._delete(item)
        return failed

    async def contents(self, families: Collection[int], devices: Collection[int]) -> Contents:
        found = self.slots.values()
        routes = frozenset(o for o in found if isinstance(o, Route) and o.family in families)
        on_devices = frozenset(o for o in found if not isinstance(o, Route) and o.ifindex in devices)
        return Contents(routes, on_devices, as_mark(found))

    async def is_still(self, mark: Mark) -> bool:
        return mark == as_mark(self.slots.values())

    def _delete(self, item: KernelObject) -> None:
        if not isinstance(item, Route):
            self.slots.pop(item.slot, None)
            return
        what = (item.destination, item.protocol, item.gateway, item.ifindex)
        found = [
            r
            for r in self.slots.values()
            if isinstance(r, Route)
            and (r.destination, r.protocol, r.gateway, r.ifindex) == what
            and item.metric in (0, r.metric)  # a delete of metric 0 names no metric
        ]
        if found:
            del self.slots[min(found, key=lambda r: r.metric).slot]


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


class Story:
    """An overlay over such a kernel, and what happens to both."""

    def __init__(self, backend: Backend, links: Links) -> None:
        self.kernel = Kernel()
        self.overlay = Overlay("n1", Reconciler(self.kernel), Journal())
        self.situation = Situation(SMALL, backend, links, (subnet("10.5.27.0/24").cidr,))
        self.kind = backend.lease_type
        self.leases: dict[str, Lease] = {}
        self.foreign: dict[Hashable, Route] = {}

    async def happen(self, event: Event) -> None:
        match event:
            case Leased(number, mac, host):
                part = subnet(cidr(number), f"10.99.0.{host}", f"02:00:00:00:00:{mac:02x}")
                new = lease(part, node=f"n{number}", kind=self.kind)
                self.leases[new.name] = new
                await self.overlay.program_some([new.name], self.leases)
            case Gone(number):
                name = lease(subnet(cidr(number))).name
                self.leases.pop(name, None)
                await self.overlay.program_some([name], self.leases)
            case Foreign(made):
                self.kernel.slots[made.slot] = self.foreign[made.slot] = made
                await self.audit()
            case Stray(item):
                if item.slot not in self.foreign:
                    self.kernel.slots[item.slot] = item
            case Lost(every):
                for slot in [s for s in self.kernel.slots if s not in self.foreign][::every]:
                    del self.kernel.slots[slot]
            case Refusing(numbers):
                self.kernel.refusing = frozenset(
                    item.slot
                    for peer in self.overlay.peers.values()
                    if peer.lease.node in {f"n{number}" for number in numbers}
                    for item in peer.objects
                )
            case Audit():
                await self.audit()
        assert self.foreign.items() <= self.kernel.slots.items(), "what is not ours is never touched"

    async def audit(self) -> None:
        await self.overlay.program_all(self.situation, self.leases.values())

    def expected(self) -> set[KernelObject]:
        """Everything that the peers need and a foreign route leaves room for."""
        wanted = {item for peer in self.overlay.peers.values() for item in peer.objects}
        possible = {item for item in wanted if item.slot not in self.foreign}
        return {*possible, *self.foreign.values()}

    def shown(self) -> list[str]:
        return sorted(text(item, NAMES) for item in self.kernel.slots.values())


def play(story: Story, script: Sequence[Event]) -> None:
    async def main() -> None:
        await story.audit()
        for event in script:
            await story.happen(event)
        await story.happen(Refusing(frozenset()))
        await story.happen(Audit())
        assert story.shown() == sorted(text(item, NAMES) for item in story.expected())
        assert not await story.overlay.plan(story.situation, story.leases.values())
        assert story.overlay.reconciler.failures == {}
        assert story.overlay.reconciler.programmed == set(story.kernel.slots.values()) - set(story.foreign.values())

    with capture_logs():  # which nobody wants to read
        asyncio.run(main())


@given(st.lists(events, max_size=20))
@example([Leased(2, 1, 12), Leased(3, 1, 13), Audit(), Gone(2)])
@example([Leased(2, 1, 12), Leased(3, 1, 14), Lost(1)])
@example([Leased(2, 1, 12), Leased(2, 2, 12), Lost(1), Leased(2, 3, 13)])
@example([Leased(2, 1, 12), Refusing(frozenset([2])), Leased(2, 2, 13), Gone(2)])
def test_vxlan_ends_as_the_leases_say_whatever_happened_before(script: list[Event]) -> None:
    play(Story(Vxlan(), LINKS), script)


@given(st.lists(events, max_size=20))
def test_host_gw_ends_as_the_leases_say_whatever_happened_before(script: list[Event]) -> None:
    # Without a device of ours, only protocol and value tell what is ours: the strays on flannel.1 are foreign.
    told = [Foreign(e.item) if isinstance(e, Stray) and isinstance(e.item, Route) else e for e in script]
    kept = [e for e in told if not isinstance(e, Stray) and not (isinstance(e, Foreign) and e.route.protocol == OURS)]
    play(Story(HostGw(), HOST_GW_LINKS), kept)
