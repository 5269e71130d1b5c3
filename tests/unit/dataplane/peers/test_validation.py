"""A lease is data from the network: each rule refuses what no honest node would publish, and says why."""

from dataclasses import replace
from ipaddress import ip_network

import pytest

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.network import parse_network
from flannelette.services.dataplane.netlink.objects import Route, packed_mac
from flannelette.services.dataplane.peers import (
    RULES,
    OperatorLimits,
    PeerContext,
    PeerSet,
    peer_of,
    peers_of,
    reject_own,
)
from tests.examples.dataplane import (
    CAPTURED,
    DEVICE,
    subnet,
)
from tests.examples.dataplane import lease as make_lease
from tests.examples.leases import by_name
from tests.examples.peer_contexts import DUAL, MAC, N2, WIDE


def with_limits(*allowed: str, never: tuple[str, ...] = ()) -> PeerContext:
    return replace(WIDE, limits=OperatorLimits(tuple(map(ip_network, allowed)), tuple(map(ip_network, never))))


LOWER_HALF = replace(WIDE, network=parse_network('{"Network":"0.0.0.0/1","SubnetLen":24}'))


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
        (subnet("10.5.53.0/24", "240.0.0.1", MAC), DUAL, "public-address", "240.0.0.1 is reserved"),
        (subnet("127.0.5.0/24", "10.99.0.12", MAC), LOWER_HALF, "special", "covers addresses of 127.0.0.0/8"),
        (subnet("10.96.0.0/11", "10.1.0.12", MAC), WIDE, "underlay", "covers addresses of the underlay"),
        (subnet("10.7.1.0/24", "10.99.0.12", MAC), with_limits(never=("10.7.1.5/32",)), "never-route", "10.7.1.5/32"),
        (subnet("10.5.53.0/24", "127.0.0.1", MAC), DUAL, "public-address", "127.0.0.1 is a loopback address"),
        (subnet("10.5.53.0/24", "0.0.0.0", MAC), DUAL, "public-address", "0.0.0.0 is unspecified"),  # noqa: S104 - a lease
        (subnet("10.5.53.0/24", "239.1.2.3", MAC), DUAL, "public-address", "239.1.2.3 is a multicast address"),
        (subnet("10.5.53.0/24", "255.255.255.255", MAC), DUAL, "public-address", "is the broadcast address"),
        (subnet("10.5.53.0/24", "fd00:99::12", MAC), DUAL, "public-address", "fd00:99::12 is not an IPv4 address"),
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
        (subnet("10.5.53.0/24", "10.99.0.12", "06:0c:56:6d:fb"), DUAL, "mac", "invalid MAC address '06:0c:56:6d:fb'"),
        (subnet("10.5.53.0/24", "10.99.0.12", "no:nm:ac:00:00:00"), DUAL, "mac", "invalid MAC address"),
        (subnet("10.5.53.0/24", "10.99.0.12", DEVICE.mac), DUAL, "own-mac", "is that of our own device"),
        (subnet("10.5.53.0/24", "10.99.0.12", MAC, vni=2**24), DUAL, "backend-data", "the lease has VNI 16777216"),
    ],
)
def test_each_rule_refuses_with_its_name_and_a_reason(
    part: Subnet, situation: PeerContext, rule: str, reason: str
) -> None:
    peer = peer_of(make_lease(part), situation)
    assert peer.objects == ()
    assert [refusal.rule for refusal in peer.refusals] == [rule]
    assert reason in peer.ignored


def test_every_rule_has_a_case_above() -> None:
    (mark,) = test_each_rule_refuses_with_its_name_and_a_reason.pytestmark  # type: ignore[attr-defined]  # pytest puts it there
    assert {rule for _, _, rule, _ in mark.args[1]} >= set(RULES)


@pytest.mark.parametrize(
    "limits", [OperatorLimits(), OperatorLimits(tuple(map(ip_network, ("10.5.0.0/16", "fd00:10::/32"))))]
)
def test_honest_leases_pass_every_rule(limits: OperatorLimits) -> None:
    honest = [
        make_lease(CAPTURED["n2"]),
        make_lease(CAPTURED["n4"]),
        make_lease(subnet("10.5.54.0/24", "192.0.2.7", MAC), subnet("fd00:10:5:36::/64", "2001:db8::7", MAC)),
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
    assert reject_own(subnet("10.5.27.0/24"), DUAL.bounds) is None
    assert reject_own(subnet("10.5.27.0/24"), with_limits("10.6.0.0/16").bounds) is not None
    assert reject_own(subnet("10.99.27.0/24"), WIDE.bounds) is not None


def test_a_mac_is_six_bytes_or_none() -> None:
    assert packed_mac(MAC) == bytes((6, 0x0C, 0x56, 0x6D, 0xFB, 0xB3))
    assert packed_mac("060c566dfbb3") is None
    assert packed_mac("") is None


def rivals(situation: PeerContext, *leases: Lease) -> dict[str, str]:
    """Who is refused, and why."""
    peers = peers_of(leases, "n1", situation)
    return {name: peer.ignored for name, peer in peers.items() if peer.ignored}


def test_of_overlapping_subnets_the_older_claim_goes_first_whatever_their_size() -> None:
    old = replace(N2, claim_order=3)
    half = make_lease(subnet("10.5.53.128/25", "10.99.0.99", "02:00:00:00:00:99"), node="n9")
    wide = make_lease(subnet("10.5.32.0/19", "10.99.0.99", "02:00:00:00:00:99"), node="n9")
    for young in (replace(half, claim_order=4), replace(wide, claim_order=4)):
        for order in ((old, young), (young, old)):
            cidr = young.subnets[0].cidr
            assert rivals(DUAL, *order) == {
                young.name: f"subnet {cidr} overlaps 10.5.53.0/24 of the lease 10.5.53.0-24 of node n2, "
                "which is older"
            }


def test_a_subnet_that_holds_another_nodes_public_address_is_refused() -> None:
    far = make_lease(subnet("10.5.53.0/24", "10.98.0.14", MAC), node="n4")
    bad = make_lease(subnet("10.98.0.0/24", "10.99.0.99", "02:00:00:00:00:99"), node="n9")
    assert rivals(WIDE, replace(far, claim_order=1), bad) == {
        "10.98.0.0-24": "subnet 10.98.0.0/24 covers the public address of the lease 10.5.53.0-24 of node n4, "
        "which is older"
    }


def test_a_lease_that_loses_in_one_family_is_carried_in_the_other_and_says_so() -> None:
    both = make_lease(
        subnet("10.5.53.128/25", "10.99.0.99", "02:00:00:00:00:99"),
        subnet("fd00:10:5:35::/64", "fd00:99::99", "02:00:00:00:00:98"),
    )
    peer = peers_of([N2, both], "n1", DUAL)[both.name]
    assert {item.family for item in peer.objects if isinstance(item, Route)} == {10}
    assert peer.ignored == ""
    assert peer.reason.startswith("subnet 10.5.53.128/25 overlaps 10.5.53.0/24")


def test_what_is_unchanged_is_not_thought_through_again() -> None:
    peer_set = PeerSet("n1")
    peer_set.update(DUAL, by_name(N2))
    peer = peer_set.peers[N2.name]
    peer_set.update(DUAL, by_name(N2))
    assert peer_set.peers[N2.name] is peer
    peer_set.update(replace(DUAL, own_subnets=()), by_name(N2))
    assert peer_set.peers[N2.name] is peer, "it is far from our own subnets"
    peer_set.update(replace(DUAL, limits=OperatorLimits(never=(ip_network("10.64.0.0/10"),))), by_name(N2))
    assert peer_set.peers[N2.name] is not peer
