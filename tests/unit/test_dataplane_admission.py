"""A lease is data from the network: what no honest node would publish is refused, and nobody else is affected."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.core.family import Network, family_of
from services.core.lease import Lease, Subnet, VxlanData
from services.core.network import contains
from services.dataplane.admission import RULES, own_refusal
from services.dataplane.backends.host_gw import HostGw
from services.dataplane.backends.vxlan import Vxlan
from services.dataplane.bounds import Limits
from services.dataplane.metrics import REFUSED
from services.dataplane.netlink.objects import FdbEntry, Neighbour, Route, packed_mac
from services.dataplane.peers import Peer, peer_of
from services.dataplane.roster import Roster, peers_of
from services.dataplane.situation import Situation
from tests.dataplane_examples import (
    CAPTURED,
    DEVICE,
    DUAL_LINKS,
    DUAL_UNDERLAY,
    HOST_GW_LINKS,
    LINKS,
    UNDERLAY,
    subnet,
)
from tests.dataplane_examples import lease as make_lease
from tests.lease_examples import DUAL_JSON, NETWORK, by_name, network

MAC = "06:0c:56:6d:fb:b3"
OWN = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))
NETWORKS = (ip_network("10.99.0.0/16"), ip_network("fd00:99::/64"))
DUAL = Situation(
    network(DUAL_JSON),
    Vxlan(),
    replace(DUAL_LINKS, underlay=replace(DUAL_UNDERLAY, networks=NETWORKS)),
    OWN,
)
WIDE = Situation(NETWORK, Vxlan(), replace(LINKS, underlay=replace(UNDERLAY, networks=NETWORKS[:1])), OWN[:1])
"""The network 10.0.0.0/8 holds the underlay 10.99.0.0/16 too."""


def with_limits(*allowed: str, never: tuple[str, ...] = ()) -> Situation:
    return replace(WIDE, limits=Limits(tuple(map(ip_network, allowed)), tuple(map(ip_network, never))))


@pytest.mark.parametrize(
    ("part", "situation", "rule", "reason"),
    [
        (subnet("10.6.0.0/24", "10.99.0.12", MAC), DUAL, "outside", "lies outside the network 10.5.0.0/16"),
        (subnet("10.5.0.0/16", "10.99.0.12", MAC), DUAL, "outside", "lies outside the network 10.5.0.0/16"),
        (subnet("10.5.4.0/24", "10.99.0.12", MAC), with_limits("10.5.0.0/22"), "not-allowed", "10.5.0.0/22"),
        (
            subnet("10.5.4.0/24", "10.99.0.12", MAC),
            with_limits("fd00::/8"),
            "not-allowed",
            "--allowed-network allows",
        ),
        (subnet("10.5.53.7/32", "10.99.0.12", MAC), DUAL, "single-address", "10.5.53.7/32 is a single address"),
        (subnet("10.5.27.128/25", "10.99.0.12", MAC), DUAL, "own-subnet", "overlaps our own 10.5.27.0/24"),
        (subnet("fd00:10:5:1b::/64", "fd00:99::12", MAC), DUAL, "own-subnet", "overlaps our own fd00:10:5:1b::/64"),
        (
            subnet("10.99.5.0/24", "10.99.0.12", MAC),
            WIDE,
            "underlay",
            "covers addresses of the underlay 10.99.0.0/16",
        ),
        (subnet("10.96.0.0/11", "10.1.0.12", MAC), WIDE, "underlay", "covers addresses of the underlay"),
        (subnet("10.7.1.0/24", "10.99.0.12", MAC), with_limits(never=("10.7.1.5/32",)), "never-route", "10.7.1.5/32"),
        (subnet("10.5.53.0/24", "127.0.0.1", MAC), DUAL, "public-address", "127.0.0.1 is a loopback address"),
        (subnet("10.5.53.0/24", "0.0.0.0", MAC), DUAL, "public-address", "0.0.0.0 is unspecified"),  # noqa: S104 - a lease
        (subnet("10.5.53.0/24", "239.1.2.3", MAC), DUAL, "public-address", "239.1.2.3 is a multicast address"),
        (subnet("10.5.53.0/24", "255.255.255.255", MAC), DUAL, "public-address", "is the broadcast address"),
        (subnet("10.5.53.0/24", "fd00:99::12", MAC), DUAL, "public-address", "fd00:99::12 is no IPv4 address"),
        (subnet("fd00:10:5:35::/64", "fe80::1", MAC), DUAL, "public-address", "fe80::1 is a link-local address"),
        (subnet("fd00:10:5:35::/64", "ff02::1", MAC), DUAL, "public-address", "ff02::1 is a multicast address"),
        (subnet("fd00:10:5:35::/64", "::1", MAC), DUAL, "public-address", "::1 is a loopback address"),
        (subnet("fd00:10:5:35::/64", "::", MAC), DUAL, "public-address", ":: is unspecified"),
        (subnet("10.5.53.0/24", "10.99.0.11", MAC), DUAL, "own-address", "10.99.0.11 is our own"),
        (subnet("10.5.53.0/24", "10.5.53.9", MAC), DUAL, "pod-address", "lies in its own subnet 10.5.53.0/24"),
        (
            subnet("10.5.53.0/24", "10.5.77.9", MAC),
            DUAL,
            "pod-address",
            "lies in the network of the pods",
        ),
        (subnet("10.5.53.0/24", "10.5.27.9", MAC), WIDE, "pod-address", "lies in our own subnet 10.5.27.0/24"),
        (subnet("10.5.53.0/24", "10.99.0.12", "01:00:5e:00:00:01"), DUAL, "mac", "is a multicast address"),
        (subnet("10.5.53.0/24", "10.99.0.12", "ff:ff:ff:ff:ff:ff"), DUAL, "mac", "is a multicast address"),
        (subnet("10.5.53.0/24", "10.99.0.12", "00:00:00:00:00:00"), DUAL, "mac", "is zero"),
        (subnet("10.5.53.0/24", "10.99.0.12", "06:0c:56:6d:fb"), DUAL, "mac", "'06:0c:56:6d:fb' is none"),
        (subnet("10.5.53.0/24", "10.99.0.12", "no:nm:ac:00:00:00"), DUAL, "mac", "is none"),
        (subnet("10.5.53.0/24", "10.99.0.12", DEVICE.mac), DUAL, "mac", "is that of our own device"),
        (subnet("10.5.53.0/24", "10.99.0.12", MAC, vni=2**24), DUAL, "backend-data", "the lease has VNI 16777216"),
    ],
)
def test_each_rule_refuses_with_its_name_and_a_reason(
    part: Subnet, situation: Situation, rule: str, reason: str
) -> None:
    peer = peer_of(make_lease(part), situation)
    assert peer.objects == frozenset()
    assert [refusal.rule for refusal in peer.refusals] == [rule]
    assert reason in peer.ignored


def test_every_rule_has_a_case_above() -> None:
    (mark,) = test_each_rule_refuses_with_its_name_and_a_reason.pytestmark  # type: ignore[attr-defined]  # pytest puts it there
    assert {rule for _, _, rule, _ in mark.args[1]} >= set(RULES)


@pytest.mark.parametrize("limits", [Limits(), Limits(tuple(map(ip_network, ("10.5.0.0/16", "fd00:10::/32"))))])
def test_honest_leases_pass_every_rule(limits: Limits) -> None:
    honest = [
        make_lease(CAPTURED["n2"]),
        make_lease(CAPTURED["n4"]),
        make_lease(subnet("10.5.54.0/24", "169.254.7.1", MAC), subnet("fd00:10:5:36::/64", "2001:db8::7", MAC)),
    ]
    assert [peer_of(each, replace(DUAL, limits=limits)).refusals for each in honest] == [()] * 3


@pytest.mark.parametrize(
    ("subnets", "rule"),
    [
        ((), "no-subnet"),
        ((subnet("10.5.53.0/24", "10.99.0.12", MAC), subnet("10.5.54.0/24", "10.99.0.12", MAC)), "two-subnets"),
    ],
)
def test_a_lease_of_no_sense_is_refused_as_a_whole(subnets: tuple[Subnet, ...], rule: str) -> None:
    peer = peer_of(Lease("x", "n2", subnets, "vxlan"), DUAL)
    assert ([refusal.rule for refusal in peer.refusals], bool(peer.objects)) == ([rule], False)


def test_our_own_subnet_is_held_against_the_rules_about_places() -> None:
    assert own_refusal(subnet("10.5.27.0/24"), DUAL) is None
    assert own_refusal(subnet("10.5.27.0/24"), with_limits("10.6.0.0/16")) is not None
    assert own_refusal(subnet("10.99.27.0/24"), WIDE) is not None


def test_a_mac_is_six_bytes_or_none() -> None:
    assert packed_mac(MAC) == bytes((6, 0x0C, 0x56, 0x6D, 0xFB, 0xB3))
    assert packed_mac("060c566dfbb3") is None
    assert packed_mac("") is None


def rivals(situation: Situation, *leases: Lease) -> dict[str, str]:
    """Who is refused, and why."""
    peers = peers_of(leases, "n1", situation)
    return {name: peer.ignored for name, peer in peers.items() if peer.ignored}


N2 = make_lease(CAPTURED["n2"], node="n2")


def test_of_overlapping_subnets_the_one_that_suits_the_configuration_goes_first() -> None:
    half = make_lease(subnet("10.5.53.128/25", "10.99.0.99", "02:00:00:00:00:99"), node="n9")
    wide = make_lease(subnet("10.5.32.0/19", "10.99.0.99", "02:00:00:00:00:99"), node="n9")
    for bad in (half, wide):
        for order in ((N2, bad), (bad, N2)):
            cidr = bad.subnets[0].cidr
            assert rivals(DUAL, *order) == {
                bad.name: f"its subnet {cidr} overlaps 10.5.53.0/24 of the lease 10.5.53.0-24, which goes first"
            }


def test_of_overlapping_subnets_that_suit_nothing_the_narrower_goes_first_and_then_the_name() -> None:
    halves = [make_lease(subnet(f"10.5.53.{n}/25", "10.99.0.99", f"02:00:00:00:00:{n:02x}")) for n in (0, 128)]
    wide = make_lease(subnet("10.5.52.0/22", "10.99.0.98", "02:00:00:00:00:98"))
    assert list(rivals(DUAL, wide, *halves)) == [wide.name]
    twin = replace(halves[0], name="another")
    assert list(rivals(DUAL, halves[0], twin)) == ["another"]


def test_a_subnet_that_holds_another_nodes_public_address_is_refused() -> None:
    far = make_lease(subnet("10.5.53.0/24", "10.98.0.14", MAC), node="n4")
    bad = make_lease(subnet("10.98.0.0/24", "10.99.0.99", "02:00:00:00:00:99"), node="n9")
    assert rivals(WIDE, far, bad) == {
        "10.98.0.0-24": "its subnet 10.98.0.0/24 covers the public address of the lease 10.5.53.0-24"
    }


def test_a_lease_that_loses_in_one_family_is_carried_in_the_other_and_says_so() -> None:
    both = make_lease(
        subnet("10.5.53.128/25", "10.99.0.99", "02:00:00:00:00:99"),
        subnet("fd00:10:5:35::/64", "fd00:99::99", "02:00:00:00:00:98"),
    )
    peer = peers_of([N2, both], "n1", DUAL)[both.name]
    assert {item.family for item in peer.objects if isinstance(item, Route)} == {10}
    assert peer.ignored == ""
    assert peer.reason.startswith("its subnet 10.5.53.128/25 overlaps 10.5.53.0/24")


def test_a_refusal_is_logged_and_counted_when_it_is_new() -> None:
    roster, bad = Roster("n1"), make_lease(subnet("10.5.53.0/24", "127.0.0.1", MAC), node="n9")
    before = REFUSED.labels("public-address")._value.get()
    with capture_logs() as logs:
        for _ in range(2):
            roster.take_all(DUAL, [N2, bad])
        roster.take_some([bad.name], by_name(bad))
        roster.take_some([bad.name], by_name(replace(bad, subnets=(subnet("10.5.53.0/24", "::1", MAC),))))
    assert [(entry["event"], entry["reason"]) for entry in logs] == [
        ("a lease is refused", "its public address 127.0.0.1 is a loopback address"),
        ("a lease is refused", "its public address ::1 is no IPv4 address"),
    ]
    assert REFUSED.labels("public-address")._value.get() == before + 2


def test_what_is_unchanged_is_not_thought_through_again() -> None:
    roster = Roster("n1")
    roster.take_all(DUAL, [N2])
    peer = roster.peers[N2.name]
    roster.take_all(DUAL, [N2])
    assert roster.peers[N2.name] is peer
    roster.take_all(replace(DUAL, own_subnets=()), [N2])
    assert roster.peers[N2.name] is peer, "it is far from our own subnets"
    roster.take_all(replace(DUAL, limits=Limits(never=(ip_network("10.64.0.0/10"),))), [N2])
    assert roster.peers[N2.name] is not peer


addresses = st.sampled_from(
    "10.99.0.11 10.99.0.12 10.98.0.14 127.0.0.1 0.0.0.0 224.0.0.1 255.255.255.255 10.5.53.1 10.5.200.1 10.0.0.1 "
    "fd00:99::11 fd00:99::12 :: ::1 fe80::1 ff02::1 fd00:10:5:35::1".split()
).map(ip_address)
cidrs = st.sampled_from(
    "10.0.0.0/8 10.5.0.0/16 10.5.0.0/17 10.5.26.0/23 10.5.27.0/24 10.5.53.0/24 10.5.53.0/25 10.5.54.0/24 "
    "10.5.55.0/24 10.98.0.0/24 10.99.0.0/24 10.64.0.0/10 192.168.0.0/24 10.5.53.1/32 fd00:10:5::/48 "
    "fd00:10:5:1b::/64 fd00:10:5:35::/64 fd00:10:5:35:8000::/65 fd00:99::/64 fd00::/8".split()
).map(ip_network)
macs = st.sampled_from([MAC, DEVICE.mac, "00:00:00:00:00:00", "01:00:5e:00:00:01", "02:00:00:00:00:07", "", "x"])
parts = st.builds(Subnet, cidrs, st.none() | addresses, st.none() | st.builds(VxlanData, st.integers(0, 2), macs))
names = st.sampled_from("abcdef")
hostile = st.builds(
    Lease, names, names, st.lists(parts, max_size=3).map(tuple), st.sampled_from(["vxlan", "vxlan", "host-gw", ""])
)
situations = st.sampled_from([DUAL, WIDE]).flatmap(
    lambda situation: st.sampled_from([situation, replace(situation, backend=HostGw(), links=HOST_GW_LINKS)])
)
limits = st.builds(
    Limits,
    st.sampled_from([(), (ip_network("10.5.0.0/18"),), (ip_network("10.0.0.0/8"), ip_network("fd00:10::/32"))]),
    st.sampled_from([(), (ip_network("10.5.54.9/32"),)]),
)


def subnets_routed(peer: Peer) -> list[Route]:
    return [item for item in peer.objects if isinstance(item, Route)]


@given(st.lists(hostile, max_size=6, unique_by=lambda lease: lease.name), situations, limits)
def test_whatever_leases_say_nothing_is_routed_but_pod_subnets_in_the_allowed_network(
    leases: list[Lease], situation: Situation, given_limits: Limits
) -> None:
    situation = replace(situation, limits=given_limits)
    peers = peers_of(leases, "n1", situation)
    routed = []
    for peer in peers.values():
        assert peer.objects or peer.ignored
        for item in peer.objects:
            match item:
                case Route():
                    cidr = ip_network((item.dst, item.length))
                    routed.append(cidr)
                    bounds = situation.network.family(family_of(cidr))
                    assert bounds is not None
                    assert contains(bounds.cidr, cidr)
                    assert not given_limits.allowed or any(contains(each, cidr) for each in given_limits.allowed)
                    underlay = situation.links.underlay
                    kept = (*situation.own_subnets, *underlay.networks, *given_limits.never)
                    assert not [each for each in kept if each.version == cidr.version and each.overlaps(cidr)]
                    assert not [each for each in underlay.addresses if each in cidr]
                case Neighbour(mac=mac) | FdbEntry(mac=mac):
                    assert any(mac)
                    assert not mac[0] & 1
            if isinstance(item, FdbEntry):
                end = ip_address(item.dst)
                assert not any((end.is_multicast, end.is_loopback, end.is_unspecified))
                assert end not in situation.links.underlay.addresses
    ends = [candidate.public_address for peer in peers.values() if peer.objects for candidate in peer.candidates]
    assert not [(a, b) for a, b in combinations(routed, 2) if a.version == b.version and a.overlaps(b)]
    assert not [(end, cidr) for end in ends for cidr in routed if end and end in cidr]


@given(st.lists(hostile, max_size=4, unique_by=lambda lease: lease.name), limits)
def test_honest_leases_lose_nothing_to_hostile_ones_of_other_sizes(bad: list[Lease], given_limits: Limits) -> None:
    situation = replace(DUAL, limits=given_limits)
    honest = [
        make_lease(CAPTURED["n2"], node="n2"),
        make_lease(
            subnet("10.5.54.0/24", "10.99.0.15", "02:00:00:00:00:15"),
            subnet("fd00:10:5:36::/64", "fd00:99::15", "02:00:00:00:00:16"),
            node="n5",
        ),
    ]
    taken = {part.cidr for each in honest for part in each.subnets}
    bad = [each for each in bad if taken.isdisjoint(part.cidr for part in each.subnets)]
    without, beside = (peers_of(leases, "n1", situation) for leases in (honest, [*bad, *honest]))
    assert {name: beside[name].objects for name in without} == {n: peer.objects for n, peer in without.items()}


changes = st.lists(st.tuples(names, st.none() | hostile), max_size=12)


@given(changes, situations)
@example(
    [(name, replace(N2, name=name, node=name)) for name in "ab"] + [("a", None), ("b", None)],
    DUAL,
)
def test_a_roster_that_heard_of_changes_one_by_one_is_one_that_sees_all(
    script: list[tuple[str, Lease | None]], situation: Situation
) -> None:
    roster, leases = Roster("n1"), dict[str, Lease]()
    with capture_logs():
        roster.take_all(situation, [])
        for name, changed in script:
            if changed is None:
                leases.pop(name, None)
            else:
                leases[name] = replace(changed, name=name)
            if roster.take_some([name], leases) is None:
                roster.take_all(situation, leases.values())
            assert roster.peers == peers_of(leases.values(), "n1", situation)


@given(
    st.lists(hostile, max_size=6, unique_by=lambda lease: lease.name),
    situations,
    st.lists(st.lists(cidrs, max_size=2).map(tuple), min_size=1, max_size=3),
)
def test_after_our_own_subnets_changed_everything_is_as_if_thought_through_from_the_start(
    leases: list[Lease], situation: Situation, own_subnets: list[tuple[Network, ...]]
) -> None:
    roster = Roster("n1")
    roster.take_all(situation, leases)
    for own in own_subnets:
        before = dict(roster.peers)
        changed = replace(situation, own_subnets=own)
        has_news = roster.take_all(changed, leases)
        assert roster.peers == peers_of(leases, "n1", changed)
        assert has_news or roster.peers == before
