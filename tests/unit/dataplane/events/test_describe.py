"""What there is to tell of a turn, as people read it."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.events import (
    Cause,
    NodeEventKind,
    Observations,
    describe_device,
    describe_peers,
    describe_repair,
    resync_cause,
)
from flannelette.services.dataplane.links.interfaces import LinkChange
from flannelette.services.dataplane.netlink.objects import ROUTE, KernelObject
from flannelette.services.dataplane.peers import Peer, PeerContext, peer_of
from flannelette.services.runtime.events import Event
from tests.examples.dataplane import CAPTURED, DEVICE, LINKS, NAMES, UNDERLAY, FakeKernel, lease, subnet
from tests.examples.leases import SMALL, by_name
from tests.examples.programming import Node

SITUATION = PeerContext(SMALL, Vxlan(), LINKS, (subnet("10.5.27.0/24").cidr,))
N2, N3 = (lease(CAPTURED[node], node=node) for node in ("n2", "n3"))


def peers(*leases: Lease) -> dict[str, Peer]:
    return {each.name: peer_of(each, SITUATION) for each in leases}


def news(old: dict[str, Peer], new: dict[str, Peer]) -> list[tuple[object, str]]:
    return [(event.kind, event.what) for event in describe_peers(old, new, "e1:3", 0.001)]


def moved(to: str = "10.99.0.22") -> Lease:
    return lease(replace(CAPTURED["n2"], public_address=ip_address(to)))


def test_a_peer_that_comes_changes_and_goes_is_told_by_what_is_different() -> None:
    assert news({}, peers(N2)) == [(NodeEventKind.PEER_ADDED, "peer added: n2, 10.5.53.0/24 at 10.99.0.12")]
    assert news(peers(N2), {}) == [(NodeEventKind.PEER_REMOVED, "peer removed: n2, 10.5.53.0/24 at 10.99.0.12")]
    assert news(peers(N2), peers(moved())) == [
        (NodeEventKind.PEER_CHANGED, "peer changed: n2, address 10.99.0.12 -> 10.99.0.22")
    ]
    other = lease(replace(CAPTURED["n2"], data=CAPTURED["n3"].data), node="n9")
    assert news(peers(N2), peers(other)) == [
        (
            NodeEventKind.PEER_CHANGED,
            "peer changed: n9, node n2 -> n9; data vni 1 06:0c:56:6d:fb:b3 -> vni 1 0e:9d:40:24:9e:77",
        )
    ]
    (event,) = describe_peers({}, peers(N2), "e1:3", 0.001)
    assert (event.cause, event.seconds, event.subject_count) == ("lease change, cursor e1:3", 0.001, 1)
    assert event.subjects == (("10.5.53.0-24", "n2"),)


def test_a_renewal_is_no_news() -> None:
    assert news(peers(replace(N2, expires_at=1.0)), peers(replace(N2, expires_at=2.0))) == []


def test_a_refused_peer_is_told_with_the_reason_and_so_is_the_end_of_it() -> None:
    bad = moved("127.0.0.1")
    reason = peers(bad)[bad.name].reason
    assert reason
    assert news({}, peers(bad)) == [
        (NodeEventKind.PEER_ADDED, f"peer added: n2, 10.5.53.0/24 at 127.0.0.1; not carried: {reason}")
    ]
    ((_, what),) = news(peers(bad), peers(N2))
    assert what == "peer changed: n2, address 127.0.0.1 -> 10.99.0.12; carried now"


def test_many_at_once_are_one_event_that_names_the_first() -> None:
    numbers = range(50, 70)
    many = [lease(subnet(f"10.5.{n}.0/24", f"10.99.1.{n}", f"02:00:00:00:00:{n}"), node=f"m{n}") for n in numbers]
    (event,) = describe_peers(peers(N3), peers(*many), "", 0.2)
    assert event.what == "peers 20 added, 1 removed: m50, m51, m52, m53, m54, m55, m56, m57, ..."
    assert (event.kind, event.subject_count, len(event.subjects), event.cause) == (
        NodeEventKind.PEERS_CHANGED, 21, 8, "lease change"
    )  # fmt: skip


def test_a_burst_of_ten_thousand_leases_is_one_event() -> None:
    assert len(describe_peers({}, {str(n): peers(N2)[N2.name] for n in range(10_000)}, "e1:3", 0.2)) == 1


def repaired(objects: list[KernelObject], observations: Observations) -> Event:
    return describe_repair(objects, observations, peers(N2, N3).values(), NAMES, 0.05)


def test_a_repair_is_told_with_its_objects_its_peers_and_what_the_kernel_said() -> None:
    objects = sorted(peers(N2)[N2.name].objects)
    observations = Observations({(Cause.ROUTE_DELETED, "flannel.1"): 1})
    event = repaired(objects, observations)
    assert event.what.startswith("repaired: 1 route, 1 forwarding entry, 1 neighbour: 10.5.53.0/24 via 10.5.53.0 dev")
    assert (event.cause, event.repair, event.objects) == ("route deleted on flannel.1", Cause.ROUTE_DELETED, 3)
    assert (event.subjects, event.subject_count) == ((("10.5.53.0-24", "n2"),), 1)
    found = repaired(objects, Observations())
    assert (found.cause, found.repair) == ("found by a full comparison", Cause.AUDIT)


def test_a_repair_of_many_objects_shows_three() -> None:
    objects = [item for peer in peers(N2, N3).values() for item in peer.objects]
    event = repaired(objects, Observations({(Cause.LINK_DELETED, "flannel.1"): 1}))
    assert event.what.startswith("repaired: 2 routes, 2 forwarding entries, 2 neighbours: 10.5.97.0/24 via ")
    assert event.what.endswith("; ...")
    assert event.what.count("; ") == 3
    assert event.subject_count == 2


def test_a_device_is_a_repair_only_where_no_decision_explains_it() -> None:
    up = [LinkChange("ip link set flannel.1 up", "link", "set", {})]
    made = describe_device("flannel.1", up, None, 0.01)
    assert (made.kind, made.what, made.repair) == (NodeEventKind.DEVICE, "flannel.1: ip link set flannel.1 up", None)
    fixed = describe_device("flannel.1", up, Observations({(Cause.LINK_DOWN, "flannel.1"): 1}), 0.01)
    assert (fixed.kind, fixed.what, fixed.repair, fixed.cause) == (
        NodeEventKind.REPAIR, "repaired: ip link set flannel.1 up", Cause.LINK_DOWN, "link down on flannel.1"
    )  # fmt: skip


def test_why_everything_was_compared_is_said_by_what_is_new_or_what_was_heard() -> None:
    own = replace(SITUATION, own_subnets=(ip_network("10.5.28.0/24"),))
    underlay = replace(UNDERLAY, mtu=9000)
    both = replace(own, links=replace(LINKS, underlay=underlay, devices={}))
    down = Observations({(Cause.LINK_DOWN, "eth0"): 1})
    assert resync_cause(None, SITUATION, Observations()) == "the first complete snapshot of leases"
    assert resync_cause(SITUATION, own, Observations()) == "new own subnet"
    assert resync_cause(SITUATION, both, down) == "new underlay, devices, own subnet; link down on eth0"
    assert resync_cause(SITUATION, SITUATION, Observations(is_requested=True)) == "requested by an operator"
    assert resync_cause(SITUATION, SITUATION, Observations()) == "audit"


class Scene(Node[FakeKernel]):
    def __init__(self) -> None:
        super().__init__(FakeKernel(), SITUATION)

    async def all(
        self, *leases: Lease, observations: Observations | None = None, situation: PeerContext = SITUATION
    ) -> list[str]:
        """What is noted of it, with its cause."""
        last = self.journal.last
        await self.programmer.program(situation, by_name(*leases), observed=observations)
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
    assert await scene.all(N2, observations=Observations({(Cause.LINK_CHANGED, "eth0"): 1})) == []
    assert await scene.all(N2, observations=Observations(is_requested=True)) == [
        "compared with the kernel: 1 peer, nothing to do (requested by an operator)"
    ]


async def test_what_a_comparison_repairs_and_what_leases_change_in_it_are_told_apart() -> None:
    scene = Scene()
    await scene.all(N2)
    scene.kernel.objects -= {item for item in scene.kernel.objects if item.kind == ROUTE}
    observations = Observations({(Cause.ROUTE_DELETED, "flannel.1"): 1})
    added, repair = await scene.all(N2, N3, observations=observations)
    assert added == "peer added: n3, 10.5.97.0/24 at 10.99.0.13 (lease change)"
    assert repair.startswith("repaired: 1 route: 10.5.53.0/24 ")
    assert scene.journal.repairs == {Cause.ROUTE_DELETED: 1}


async def test_a_device_made_again_by_somebody_is_a_repair_of_all_on_it_and_after_a_teardown_it_is_none() -> None:
    scene = Scene()
    await scene.all(N2)
    again = replace(SITUATION, links=replace(LINKS, devices={f: replace(DEVICE, index=4) for f in LINKS.devices}))
    scene.kernel.objects.clear()
    observations = Observations({(Cause.LINK_DELETED, "flannel.1"): 1})
    (repair,) = await scene.all(N2, observations=observations, situation=again)
    assert repair.startswith("repaired: 1 route, 1 forwarding entry, 1 neighbour: 10.5.53.0/24 via ")
    assert scene.journal.repairs == {Cause.LINK_DELETED: 3}
    scene.kernel.objects.clear()
    scene.programmer.forget()
    assert await scene.all(N2, observations=Observations(is_requested=True)) == [
        "compared with the kernel: 1 peer, 3 put, 0 deleted (requested by an operator; new devices)"
    ]
    assert scene.journal.repairs.total() == 3


async def test_a_lease_change_alone_is_told_by_its_peers() -> None:
    scene = Scene()
    await scene.all(N2)
    last, scene.journal.cursor = scene.journal.last, "e1:4"
    await scene.programmer.program(SITUATION, by_name(N3), [N2.name, N3.name])
    assert scene.told(last) == [
        "peer removed: n2, 10.5.53.0/24 at 10.99.0.12 (lease change, cursor e1:4)",
        "peer added: n3, 10.5.97.0/24 at 10.99.0.13 (lease change, cursor e1:4)",
    ]


async def test_what_the_kernel_refuses_is_told_once() -> None:
    scene = Scene()
    refused = next(iter(sorted(peers(N2)[N2.name].objects)))
    scene.kernel.refused[refused] = "No buffer space available (ENOBUFS)"
    *_, failure = await scene.all(N2)
    assert failure.startswith("1 object not made, retried later: 10.5.53.0 dev flannel.1 lladdr ")
    assert await scene.all(N2) == []


async def test_what_the_kernel_takes_at_last_is_a_repair() -> None:
    scene = Scene()
    refused = min(peers(N2)[N2.name].objects)
    scene.kernel.refused[refused] = "No buffer space available (ENOBUFS)"
    await scene.all(N2)
    scene.kernel.refused.clear()
    (repair,) = await scene.all(N2)
    assert repair.startswith("repaired: 1 neighbour: 10.5.53.0 dev flannel.1 lladdr ")
    assert scene.journal.repairs == {Cause.AUDIT: 1}


async def test_what_was_lost_is_a_repair_also_if_the_kernel_refused_it_meanwhile() -> None:
    scene = Scene()
    await scene.all(N2)
    (lost,) = (item for item in scene.kernel.objects if item.kind == ROUTE)
    scene.kernel.objects.remove(lost)
    scene.kernel.refused[lost] = "Network is down (ENETDOWN)"
    await scene.all(N2)
    scene.kernel.refused.clear()
    (repair,) = await scene.all(N2, observations=Observations({(Cause.LINK_DOWN, "eth0"): 1}))
    assert repair.startswith("repaired: 1 route: 10.5.53.0/24 ")
    assert scene.journal.repairs == {Cause.LINK_DOWN: 1}
