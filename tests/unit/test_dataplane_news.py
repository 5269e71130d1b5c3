"""What there is to tell of a turn, as people read it."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import cast

from services.core.lease import Lease
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.causes import Cause, Heard
from services.dataplane.devices import LinkStep
from services.dataplane.journal import Event, Journal, Kind
from services.dataplane.netlink.objects import ROUTE, KernelObject
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.news import device_news, peer_news, repair_news, resync_cause
from services.dataplane.overlay import Overlay
from services.dataplane.peers import Peer, peer_of
from services.dataplane.reconciler import Reconciler
from services.dataplane.situation import Situation
from tests.dataplane_examples import CAPTURED, DEVICE, LINKS, NAMES, UNDERLAY, FakeKernel, lease, subnet
from tests.lease_examples import SMALL, by_name

SITUATION = Situation(SMALL, Vxlan(), LINKS, (subnet("10.5.27.0/24").cidr,))
N2, N3 = (lease(CAPTURED[node], node=node) for node in ("n2", "n3"))


def peers(*leases: Lease) -> dict[str, Peer]:
    return {each.name: peer_of(each, SITUATION) for each in leases}


def news(old: dict[str, Peer], new: dict[str, Peer]) -> list[tuple[Kind, str]]:
    return [(event.kind, event.what) for event in peer_news(old, new, "e1:3", 0.001)]


def moved(to: str = "10.99.0.22") -> Lease:
    return lease(replace(CAPTURED["n2"], public_address=ip_address(to)))


def test_a_peer_that_comes_changes_and_goes_is_told_by_what_is_different() -> None:
    assert news({}, peers(N2)) == [(Kind.PEER_ADDED, "peer added: n2, 10.5.53.0/24 at 10.99.0.12")]
    assert news(peers(N2), {}) == [(Kind.PEER_REMOVED, "peer removed: n2, 10.5.53.0/24 at 10.99.0.12")]
    assert news(peers(N2), peers(moved())) == [
        (Kind.PEER_CHANGED, "peer changed: n2, address 10.99.0.12 -> 10.99.0.22")
    ]
    other = lease(replace(CAPTURED["n2"], data=CAPTURED["n3"].data), node="n9")
    assert news(peers(N2), peers(other)) == [
        (
            Kind.PEER_CHANGED,
            "peer changed: n9, node n2 -> n9; data vni 1 06:0c:56:6d:fb:b3 -> vni 1 0e:9d:40:24:9e:77",
        )
    ]
    (event,) = peer_news({}, peers(N2), "e1:3", 0.001)
    assert (event.cause, event.seconds, event.peer_count) == ("lease change, cursor e1:3", 0.001, 1)
    assert event.peers == (("10.5.53.0-24", "n2"),)


def test_a_renewal_is_no_news() -> None:
    assert news(peers(replace(N2, expires_at=1.0)), peers(replace(N2, expires_at=2.0))) == []


def test_a_refused_peer_is_told_with_the_reason_and_so_is_the_end_of_it() -> None:
    bad = moved("127.0.0.1")
    reason = peers(bad)[bad.name].reason
    assert reason
    assert news({}, peers(bad)) == [
        (Kind.PEER_ADDED, f"peer added: n2, 10.5.53.0/24 at 127.0.0.1; not carried: {reason}")
    ]
    ((_, what),) = news(peers(bad), peers(N2))
    assert what == "peer changed: n2, address 127.0.0.1 -> 10.99.0.12; carried now"


def test_many_at_once_are_one_event_that_names_the_first() -> None:
    numbers = range(50, 70)
    many = [lease(subnet(f"10.5.{n}.0/24", f"10.99.1.{n}", f"02:00:00:00:00:{n}"), node=f"m{n}") for n in numbers]
    (event,) = peer_news(peers(N3), peers(*many), "", 0.2)
    assert event.what == "peers 20 added, 1 removed: m50, m51, m52, m53, m54, m55, m56, m57, ..."
    assert (event.kind, event.peer_count, len(event.peers), event.cause) == (
        Kind.PEERS_CHANGED, 21, 8, "lease change"
    )  # fmt: skip


def test_a_burst_of_ten_thousand_leases_is_one_event() -> None:
    assert len(peer_news({}, {str(n): peers(N2)[N2.name] for n in range(10_000)}, "e1:3", 0.2)) == 1


def repaired(objects: list[KernelObject], heard: Heard) -> list[Event]:
    return repair_news(objects, heard, peers(N2, N3).values(), NAMES, 0.05)


def test_a_repair_is_told_with_its_objects_its_peers_and_what_the_kernel_said() -> None:
    objects = sorted(peers(N2)[N2.name].objects)
    heard = Heard([(Cause.ROUTE_DELETED, "flannel.1")])
    route, rest = repaired(objects, heard)
    assert route.what == "put right: 1 route: 10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"
    assert (route.cause, route.repair, route.objects) == ("route deleted on flannel.1", Cause.ROUTE_DELETED, 1)
    assert (route.peers, route.peer_count) == ((("10.5.53.0-24", "n2"),), 1)
    assert rest.what.startswith("put right: 1 forwarding entry, 1 neighbour: 06:0c:56:6d:fb:b3 dev flannel.1")
    assert (rest.cause, rest.repair) == ("a comparison found it", Cause.AUDIT)


def test_a_repair_of_many_objects_shows_three() -> None:
    objects = [item for peer in peers(N2, N3).values() for item in peer.objects]
    (event,) = repaired(objects, Heard([(Cause.LINK_DELETED, "flannel.1")]))
    assert event.what.startswith("put right: 2 routes, 2 forwarding entries, 2 neighbours: 10.5.97.0/24 via ")
    assert event.what.endswith("; ...")
    assert event.what.count("; ") == 3
    assert event.peer_count == 2


def test_a_device_is_a_repair_only_where_no_decision_explains_it() -> None:
    up = [LinkStep("ip link set flannel.1 up", "link", "set", {})]
    made = device_news("flannel.1", up, None, 0.01)
    assert (made.kind, made.what, made.repair) == (Kind.DEVICE, "flannel.1: ip link set flannel.1 up", None)
    fixed = device_news("flannel.1", up, Heard([(Cause.LINK_DOWN, "flannel.1")]), 0.01)
    assert (fixed.kind, fixed.what, fixed.repair, fixed.cause) == (
        Kind.REPAIR, "put right: ip link set flannel.1 up", Cause.LINK_DOWN, "link down on flannel.1"
    )  # fmt: skip


def test_why_everything_was_compared_is_said_by_what_is_new_or_what_was_heard() -> None:
    own = replace(SITUATION, own_subnets=(ip_network("10.5.28.0/24"),))
    underlay = replace(UNDERLAY, mtu=9000)
    both = replace(own, links=replace(LINKS, underlay=underlay, devices={}))
    down = Heard([(Cause.LINK_DOWN, "eth0")])
    assert resync_cause(None, SITUATION, Heard()) == "the first complete snapshot of leases"
    assert resync_cause(SITUATION, own, Heard()) == "new own subnet"
    assert resync_cause(SITUATION, both, down) == "new underlay, devices, own subnet; link down on eth0"
    assert resync_cause(SITUATION, SITUATION, Heard(is_asked=True)) == "an operator asked for it"
    assert resync_cause(SITUATION, SITUATION, Heard()) == "audit"


class Scene:
    def __init__(self) -> None:
        self.kernel, self.journal = FakeKernel(), Journal()
        self.overlay = Overlay("n1", Reconciler(cast("KernelSocket", self.kernel)), self.journal)

    async def all(self, *leases: Lease, heard: Heard | None = None, situation: Situation = SITUATION) -> list[str]:
        """What is noted of it, with its cause."""
        last = self.journal.last
        await self.overlay.program_all(situation, leases, heard)
        return self.told(last)

    def told(self, last: int) -> list[str]:
        entries, _ = self.journal.after(last)
        return [f"{entry.event.what} ({entry.event.cause})" for entry in entries]


async def test_a_comparison_that_finds_nothing_is_no_event_unless_somebody_asked() -> None:
    scene = Scene()
    assert await scene.all(N2) == [
        "peer added: n2, 10.5.53.0/24 at 10.99.0.12 (lease change)",
        "compared with the kernel: 1 peer, 3 put, 0 deleted (the first complete snapshot of leases)",
    ]
    assert await scene.all(N2) == []
    assert await scene.all(N2, heard=Heard([(Cause.LINK_CHANGED, "eth0")])) == []
    assert await scene.all(N2, heard=Heard(is_asked=True)) == [
        "compared with the kernel: 1 peer, nothing to do (an operator asked for it)"
    ]


async def test_what_a_comparison_repairs_and_what_leases_change_in_it_are_told_apart() -> None:
    scene = Scene()
    await scene.all(N2)
    scene.kernel.objects -= {item for item in scene.kernel.objects if item.kind == ROUTE}
    heard = Heard([(Cause.ROUTE_DELETED, "flannel.1")])
    added, repair = await scene.all(N2, N3, heard=heard)
    assert added == "peer added: n3, 10.5.97.0/24 at 10.99.0.13 (lease change)"
    assert repair.startswith("put right: 1 route: 10.5.53.0/24 ")
    assert scene.journal.repairs == {Cause.ROUTE_DELETED: 1}


async def test_a_device_made_again_by_somebody_is_a_repair_of_all_on_it_and_after_a_teardown_it_is_none() -> None:
    scene = Scene()
    await scene.all(N2)
    again = replace(SITUATION, links=replace(LINKS, devices={f: replace(DEVICE, index=4) for f in LINKS.devices}))
    scene.kernel.objects.clear()
    heard = Heard([(Cause.LINK_DELETED, "flannel.1")])
    (repair,) = await scene.all(N2, heard=heard, situation=again)
    assert repair.startswith("put right: 1 route, 1 forwarding entry, 1 neighbour: 10.5.53.0/24 via ")
    assert scene.journal.repairs == {Cause.LINK_DELETED: 3}
    scene.kernel.objects.clear()
    scene.overlay.forget()
    assert await scene.all(N2, heard=Heard(is_asked=True)) == [
        "compared with the kernel: 1 peer, 3 put, 0 deleted (an operator asked for it; new devices)"
    ]
    assert scene.journal.repairs.total() == 3


async def test_a_lease_change_alone_is_told_by_its_peers() -> None:
    scene = Scene()
    await scene.all(N2)
    last, scene.journal.cursor = scene.journal.last, "e1:4"
    await scene.overlay.program_some([N2.name, N3.name], by_name(N3))
    assert scene.told(last) == [
        "peer removed: n2, 10.5.53.0/24 at 10.99.0.12 (lease change, cursor e1:4)",
        "peer added: n3, 10.5.97.0/24 at 10.99.0.13 (lease change, cursor e1:4)",
    ]


async def test_what_the_kernel_refuses_is_told_once() -> None:
    scene = Scene()
    refused = next(iter(sorted(peers(N2)[N2.name].objects)))
    scene.kernel.refused[refused] = "No buffer space available (ENOBUFS)"
    *_, failure = await scene.all(N2)
    assert failure.startswith("the kernel refuses 1 object, tried again later: 10.5.53.0 dev flannel.1 lladdr ")
    assert await scene.all(N2) == []
