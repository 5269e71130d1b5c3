"""The backend of a running network changes: by which one each peer is reached before and after its node changed."""

from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.peers import Overlay, Peer, PeerContext, PeerSet, peers_of
from tests.examples.dataplane import CAPTURED, DEVICE, LINKS, lines, subnet
from tests.examples.dataplane import lease as make_lease
from tests.examples.leases import SMALL_JSON, network

BEFORE: Final = make_lease(CAPTURED["n2"], node="n2")
AFTER: Final = replace(
    BEFORE, subnets=tuple(Subnet(s.cidr, s.public_address) for s in BEFORE.subnets), backend_type="host-gw"
)
UNCHANGED: Final = PeerContext(network(SMALL_JSON), Vxlan(), LINKS)
DONE: Final = PeerContext(network(SMALL_JSON), HostGw(), replace(LINKS, devices={}))
CHANGED: Final = replace(DONE, earlier=(Overlay("vxlan", Vxlan(), LINKS),))
BY_VXLAN: Final = [
    "06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12 self permanent",
    "10.5.53.0 dev flannel.1 lladdr 06:0c:56:6d:fb:b3 PERMANENT",
    "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink",
]
DIRECT: Final = "10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334"


def last(*steps: tuple[PeerContext, Lease]) -> Peer:
    """The peer of node n1 after these updates."""
    peers = PeerSet("n1")
    for context, lease in steps:
        peers.update(context, {lease.name: lease})
    return peers.peers[BEFORE.name]


def test_a_changed_node_reaches_an_unchanged_one_as_before() -> None:
    for peer in (last((UNCHANGED, BEFORE), (CHANGED, BEFORE)), last((CHANGED, BEFORE))):
        assert lines(peer.objects) == BY_VXLAN
        assert (peer.via, peer.ignored) == ("vxlan", "")
        assert peer.reason == "reached by vxlan until its lease has the backend of the configuration"


def test_two_changed_nodes_use_the_new_backend_and_can_still_receive_by_the_earlier_one() -> None:
    peer = last((UNCHANGED, BEFORE), (CHANGED, BEFORE), (CHANGED, AFTER))
    assert lines(peer.objects) == [*BY_VXLAN[:2], DIRECT]
    assert (peer.via, peer.reason) == ("", "")


def test_an_unchanged_node_reaches_a_changed_one_as_before() -> None:
    peer = last((UNCHANGED, BEFORE), (UNCHANGED, AFTER))
    assert lines(peer.objects) == BY_VXLAN
    assert peer.ignored == ""
    assert (
        peer.reason == "the backend type is host-gw, that of the network is vxlan; it is reached as before its change"
    )


def test_a_plan_has_the_same_peers() -> None:
    peers = PeerSet("n1")
    for lease in (BEFORE, AFTER):
        peers.update(UNCHANGED, {lease.name: lease})
    assert peers_of([AFTER], "n1", UNCHANGED, peers.peers) == peers.peers
    assert peers_of([AFTER], "n1", UNCHANGED) != peers.peers


def test_an_unchanged_node_that_changes_last_goes_on_without_a_gap() -> None:
    peer = last((UNCHANGED, BEFORE), (UNCHANGED, AFTER), (CHANGED, AFTER))
    assert lines(peer.objects) == [*BY_VXLAN[:2], DIRECT]


def test_a_backend_whose_process_does_not_run_yet_is_used_only_where_there_is_no_other() -> None:
    starting = replace(CHANGED, works=False)
    assert lines(last((UNCHANGED, BEFORE), (starting, AFTER)).objects) == BY_VXLAN
    assert lines(last((UNCHANGED, BEFORE), (starting, AFTER), (CHANGED, AFTER)).objects) == [*BY_VXLAN[:2], DIRECT]
    assert lines(last((starting, AFTER)).objects) == [DIRECT], "after a restart its process may have gone on"


def test_what_a_start_finds_in_the_kernel_stays_until_the_process_runs() -> None:
    starting = replace(CHANGED, works=False)
    first = starting.after(None)
    assert first.adds_only
    assert starting.after(first).adds_only
    assert not CHANGED.after(first).adds_only
    assert not starting.after(CHANGED).adds_only, "it is no start: what each peer was reached by is known"
    assert not replace(DONE, works=False).after(None).adds_only, "nothing else could reach them"


def test_once_the_earlier_backend_is_gone_nothing_of_it_is_left() -> None:
    assert lines(last((UNCHANGED, BEFORE), (CHANGED, AFTER), (DONE, AFTER)).objects) == [DIRECT]
    assert last((UNCHANGED, BEFORE), (CHANGED, BEFORE), (DONE, BEFORE)).objects == ()


def test_what_another_node_or_place_said_does_not_count() -> None:
    for other in (
        replace(AFTER, node="n3"),
        replace(AFTER, subnets=tuple(replace(s, public_address=ip_address("10.99.0.77")) for s in AFTER.subnets)),
    ):
        peer = last((UNCHANGED, BEFORE), (UNCHANGED, other))
        assert peer.objects == ()
        assert peer.ignored == "the backend type is host-gw, that of the network is vxlan"
    assert last((UNCHANGED, AFTER)).objects == ()


def test_two_vnis_are_told_apart_by_the_lease() -> None:
    both = replace(UNCHANGED, backend=Vxlan(vni=7), earlier=(Overlay("vxlan VNI 1", Vxlan(), LINKS),))
    assert last((both, BEFORE)).via == "vxlan VNI 1"
    now = make_lease(subnet("10.5.53.0/24", "10.99.0.12", "06:0c:56:6d:fb:b3", vni=7), node="n2")
    assert last((both, now)).via == ""


def test_a_claim_that_a_lease_has_lost_is_not_carried_once_its_node_has_another_backend() -> None:
    thief = make_lease(subnet("10.5.97.0/24", "10.99.0.13", "06:0c:56:6d:fb:b3"), node="n3")
    leases = [replace(BEFORE, claim_order=1), replace(thief, claim_order=2)]
    peers = PeerSet("n1")
    peers.update(UNCHANGED, {each.name: each for each in leases})
    assert "is that of the lease" in peers.peers[thief.name].ignored
    leases[1] = replace(leases[1], subnets=(subnet("10.5.97.0/24", "10.99.0.13"),), backend_type="host-gw")
    for context in (UNCHANGED, CHANGED):
        peers.update(context, {each.name: each for each in leases})
        found = lines(peers.peers[thief.name].objects)
        assert [line for line in found if "06:0c:56:6d:fb:b3" in line] == []


def test_what_a_lease_must_not_say_counts_no_more_once_its_node_has_another_backend() -> None:
    bad = replace(BEFORE, subnets=(subnet("10.5.53.0/24", "10.99.0.12", DEVICE.mac),))
    peer = last((UNCHANGED, bad), (CHANGED, bad), (CHANGED, AFTER))
    assert lines(peer.objects) == [DIRECT]


def test_what_another_lease_claims_now_is_not_what_a_changed_node_said_before() -> None:
    """Else both would write one entry of the kernel: here that of the MAC, with WireGuard that of the key."""
    newer = replace(make_lease(subnet("10.5.97.0/24", "10.99.0.13", "06:0c:56:6d:fb:b3"), node="n3"), claim_order=2)
    peers = PeerSet("n1")
    for lease in (replace(BEFORE, claim_order=1), replace(AFTER, claim_order=1)):
        peers.update(CHANGED, {lease.name: lease})
    assert lines(peers.peers[AFTER.name].objects) == [*BY_VXLAN[:2], DIRECT]
    peers.update(CHANGED, {lease.name: lease, newer.name: newer}, [newer.name])
    assert lines(peers.peers[AFTER.name].objects) == [DIRECT]
    assert "06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.13 self permanent" in lines(peers.peers[newer.name].objects)
    peers = PeerSet("n1")
    for lease in (replace(BEFORE, claim_order=1), replace(AFTER, claim_order=1)):
        peers.update(UNCHANGED, {lease.name: lease})
    peers.update(UNCHANGED, {lease.name: lease, newer.name: newer}, [newer.name])
    assert lines(peers.peers[AFTER.name].objects) == BY_VXLAN, "it is reached by that, and its claim is the older one"
    assert peers.peers[newer.name].objects == ()
