"""Which notifications of the kernel lead to a look at everything."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.events import Observations
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour
from flannelette.services.dataplane.peers import PeerContext, peers_of
from flannelette.services.dataplane.watch import Pending, classifier, pause, watch_kernel
from tests.examples.dataplane import CAPTURED, DEVICE, ETH0, FLANNEL, LINKS, UNDERLAY, lease
from tests.examples.leases import SMALL_JSON, network

PORT = 4711
N2 = lease(CAPTURED["n2"])
OTHER = 78
"""A route of somebody else inside the network goes out of this device."""
GROUND = SimpleNamespace(underlay=UNDERLAY, backend=Vxlan())
DIRECT = SimpleNamespace(underlay=UNDERLAY, backend=Vxlan(direct_routing=True))
ENTRY = FdbEntry(bytes(6), b"\x0a\x63\0\x0c", FLANNEL)
NEIGHBOUR = Neighbour(b"\x0a\5\x35\0", bytes(6), 2, FLANNEL)


class FakeReconciler(SimpleNamespace):
    deleted: set[object]

    def take_deleted_keys(self) -> set[object]:
        taken, self.deleted = self.deleted, set()
        return taken


class FakeDataplane(SimpleNamespace):
    """What healing looks at."""

    def __init__(self, *programmed: KernelObject, ground: Any = GROUND, trouble: str = "") -> None:
        super().__init__(
            tracker=SimpleNamespace(
                config=ground,
                configs=[ground] if ground else [],
                all_devices=lambda: [DEVICE] if ground else [],
                error=trouble,
            ),
            programmer=SimpleNamespace(
                reconciler=FakeReconciler(programmed=set(programmed), deleted=set(), foreign_devices={OTHER}),
                context=PeerContext(network(SMALL_JSON), Vxlan(), LINKS, (ip_network("10.5.27.0/24"),)),
            ),
            settings=SimpleNamespace(route_protocol=77),
            audits=0,
            observations=Observations(),
        )

    def audit(self, observed: Observations) -> None:
        self.audits += 1
        self.observations += observed

    @property
    def real(self) -> Controller:
        return cast("Controller", self)


def settle(pending: Pending, dataplane: FakeDataplane) -> None:
    observed = pending.settle(dataplane.programmer.reconciler)
    if observed.counts:
        dataplane.audit(observed)


def test_with_direct_routing_a_route_of_the_underlay_concerns_us_too() -> None:
    change = Change(ChangedObject.ROUTE, True, 2, ETH0, 4, length=24)
    assert not classifier(FakeDataplane().real, PORT)(change)
    assert classifier(FakeDataplane(ground=DIRECT).real, PORT)(change)
    assert not classifier(FakeDataplane(ground=DIRECT).real, PORT)(replace(change, ifindex=77))


@pytest.mark.parametrize("subject", [ChangedObject.LINK, ChangedObject.ADDRESS])
def test_while_the_underlay_is_lost_any_interface_may_be_it(subject: ChangedObject) -> None:
    strange = Change(subject, ifindex=77)
    assert not classifier(FakeDataplane().real, PORT)(strange)
    assert classifier(FakeDataplane(trouble="no interface matches").real, PORT)(strange)
    assert not classifier(FakeDataplane(ground=None, trouble="no backend").real, PORT)(strange)


@pytest.mark.parametrize(
    ("change", "is_ours"),
    [
        (Change(ChangedObject.OVERRUN), True),
        (Change(ChangedObject.LINK, ifindex=FLANNEL), True),
        (Change(ChangedObject.LINK, True, ifindex=FLANNEL), True),
        (Change(ChangedObject.LINK, ifindex=ETH0), True),
        (Change(ChangedObject.LINK, ifindex=77), False),
        (Change(ChangedObject.ADDRESS, True, 2, ETH0), True),
        (Change(ChangedObject.ADDRESS, True, 2, 77), False),
        (Change(ChangedObject.ROUTE, True, 2, 99, 77, length=24), True),
        (Change(ChangedObject.ROUTE, False, 2, FLANNEL, 3, length=24), True),
        (Change(ChangedObject.ROUTE, True, 2, ETH0, 4, length=24), False),
        (Change(ChangedObject.ROUTE, False, 2, 77, 4), True),
        (Change(ChangedObject.ROUTE, False, 2, ETH0, 4, 0, b"\x0a\5\x35\0", 24, is_main=True), True),
        (Change(ChangedObject.ROUTE, True, 2, ETH0, 4, 0, b"\x0a\5\x35\0", 25, is_main=True), True),
        (Change(ChangedObject.ROUTE, False, 2, ETH0, 4, 0, b"\x0a\5\x35\0", 24), False),
        (Change(ChangedObject.ROUTE, False, 2, ETH0, 4, 0, b"\x0a\5\x1b\7", 32, is_main=True), False),
        (Change(ChangedObject.ROUTE, False, 2, ETH0, 4, 0, b"\x0a\6\0\0", 24, is_main=True), False),
        (Change(ChangedObject.LINK, True, ifindex=OTHER), True),
        (Change(ChangedObject.ADDRESS, True, 2, OTHER), True),
        (Change(ChangedObject.NEIGHBOUR, True, 2, OTHER), False),
        (Change(ChangedObject.ROUTE, True, 2, FLANNEL, 77, PORT, length=24), False),
        (Change(ChangedObject.NEIGHBOUR, True, 2, FLANNEL), True),
        (Change(ChangedObject.NEIGHBOUR, False, 2, FLANNEL), True),
        (Change(ChangedObject.NEIGHBOUR, False, 2, FLANNEL, 0, PORT), False),
        (Change(ChangedObject.NEIGHBOUR, False, 2, ETH0, 0, 99), False),
        (Change(ChangedObject.NEIGHBOUR, True, 2, ETH0), False),
        (Change(ChangedObject.FDB_ENTRY, True, 7, FLANNEL), True),
        (Change(ChangedObject.FDB_ENTRY, False, 7, FLANNEL), True),
        (Change(ChangedObject.FDB_ENTRY, False, 7, ETH0), False),
    ],
)
def test_what_may_touch_ours_concerns_us_and_nothing_else(change: Change, is_ours: bool) -> None:
    assert (classifier(FakeDataplane().real, PORT)(change) is not None) is is_ours


def test_before_there_is_a_ground_only_routes_of_our_protocol_do() -> None:
    concerns = classifier(FakeDataplane(ground=None).real, PORT)
    assert not concerns(Change(ChangedObject.LINK, ifindex=FLANNEL))
    assert concerns(Change(ChangedObject.ROUTE, True, 2, 99, 77))


@pytest.mark.parametrize("item", [ENTRY, NEIGHBOUR])
def test_an_entry_that_is_gone_counts_only_while_we_believe_it_to_be_there(item: KernelObject) -> None:
    gone = Change(ChangedObject.FDB_ENTRY, True, 7, FLANNEL, key=item.key)
    for dataplane, audits in ((FakeDataplane(item), 1), (FakeDataplane(), 0)):
        pending = Pending()
        assert pending.take([gone], classifier(dataplane.real, PORT))
        settle(pending, dataplane)
        assert dataplane.audits == audits
        assert sum(dataplane.observations.counts.values()) == audits


@pytest.mark.parametrize(
    ("item", "other"), [(ENTRY, ENTRY._replace(via=7)), (NEIGHBOUR, NEIGHBOUR._replace(mac=b"other!"))]
)
def test_what_an_entry_is_now_counts_and_not_who_made_it(item: KernelObject, other: KernelObject) -> None:
    def told(*items: KernelObject) -> list[Change]:
        return [Change(ChangedObject.FDB_ENTRY, False, 7, FLANNEL, entries=items)]

    learned = [Change(ChangedObject.NEIGHBOUR, False, 2, FLANNEL, key=item.key)]
    for reported, audits in (
        (told(item), 0),
        (told(other), 1),
        (told(other, item), 0),
        (told(other) + told(item), 0),
        (told(item, other), 1),
        (learned, 1),
        (learned + told(item), 0),
        (told(), 0),
    ):
        dataplane, pending = FakeDataplane(item), Pending()
        assert pending.take(reported, classifier(dataplane.real, PORT))
        settle(pending, dataplane)
        assert (dataplane.audits, reported) == (audits, reported)


def test_what_we_took_away_ourselves_explains_itself_once() -> None:
    dataplane = FakeDataplane(ENTRY, NEIGHBOUR)
    gone = [Change(ChangedObject.FDB_ENTRY, True, 7, FLANNEL, key=item.key) for item in (ENTRY, NEIGHBOUR)]
    pending, concerns = Pending(), classifier(dataplane.real, PORT)
    for ours, told, audits in ((gone, gone, 0), (gone[:1], gone, 1), ([], gone[:1], 2)):
        dataplane.programmer.reconciler.deleted |= {change.key for change in ours}
        assert pending.take(told, concerns)
        settle(pending, dataplane)
        assert dataplane.audits == audits


def test_a_burst_is_one_look_and_the_next_fault_another() -> None:
    dataplane = FakeDataplane(ENTRY)
    concerns = classifier(dataplane.real, PORT)
    pending = Pending()
    down = Change(ChangedObject.LINK, ifindex=FLANNEL)
    gone = Change(ChangedObject.FDB_ENTRY, True, 7, FLANNEL, key=ENTRY.key)
    assert not pending.take([Change(ChangedObject.LINK, ifindex=77)], concerns)
    assert pending.take([gone], concerns)
    for _ in range(100):
        assert not pending.take([down, gone], concerns)
    settle(pending, dataplane)
    assert dataplane.audits == 1
    assert pending.take([down], concerns)
    settle(pending, dataplane)
    assert dataplane.audits == 2
    assert dataplane.observations.words == "link down on flannel.1"
    assert dataplane.observations.since is not None


@pytest.mark.parametrize(
    ("since", "cost", "expected"),
    [(60, 0.001, 0.01), (0.2, 0.001, 0.05), (60, 3, 0.01), (0.1, 0.1, 0.4), (0.6, 0.2, 0.4), (1.2, 0.2, 0.01)],
)
def test_a_fault_is_compared_at_once_and_a_fight_takes_a_fifth_of_a_core(
    since: float, cost: float, expected: float
) -> None:
    assert pause(since, cost) == pytest.approx(expected)


async def looks_after(*batches: list[Change], has_findings: bool = False) -> list[bool]:
    """Whether each batch of notifications makes the diagnosis look."""
    looks, dataplane = list[bool](), FakeDataplane()
    peers = peers_of([N2], "n1", dataplane.programmer.context)
    dataplane.programmer.peers, dataplane.findings, dataplane.iterations = peers, has_findings * (1,), 1
    dataplane.suspicious, dataplane.programmer.last_resync_cpu = asyncio.Event(), 0.0

    async def changes() -> AsyncIterator[list[Change]]:
        for batch in batches:
            yield batch
            looks.append(dataplane.suspicious.is_set())
            dataplane.suspicious.clear()

    kernel = SimpleNamespace(changes=changes)
    await watch_kernel(dataplane.real, cast("Actuator", kernel), PORT)
    return looks


async def test_a_neighbour_of_the_underlay_that_stays_away_is_looked_at_once() -> None:
    away = Change(ChangedObject.NEIGHBOUR, True, 2, ETH0, key=("neighbour", 12))
    back, other = replace(away, gone=False), replace(away, key=("neighbour", 13))
    assert await looks_after([away], [away], [away, away], [other], [back], [away]) == [
        True, False, False, True, False, True,
    ]  # fmt: skip
    overrun = Change(ChangedObject.OVERRUN)
    assert await looks_after([away], [overrun], [away]) == [True, False, True]


@pytest.mark.parametrize("has_findings", [False, True])
async def test_that_the_host_of_a_peer_is_away_is_the_matter_of_probes(has_findings: bool) -> None:
    """A node of a thousand silent peers had looked at its host after each of them."""
    (subnet,) = N2.subnets
    assert subnet.public_address is not None
    peer = Change(ChangedObject.NEIGHBOUR, True, 2, ETH0, key=("neighbour", ETH0, subnet.public_address.packed))
    router = replace(peer, key=("neighbour", ETH0, b"\x0a\x63\0\x01"))
    assert await looks_after([peer], [router], [replace(peer, ifindex=77, key=())], has_findings=has_findings) == [
        has_findings, True, True,
    ]  # fmt: skip
