"""One rule for what two leases claim: subnets, MACs, keys and public addresses.

Regression tests of hole 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.conflicts import ConflictIndex, losses, rank_of
from flannelette.services.core.leases.lease import BackendData, Lease, Subnet, VxlanData, WireguardData
from flannelette.services.core.network import parse_network

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
HOLDS_UNDERLAY = parse_network('{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}')
KEY = "A" * 42 + "8="


def lease(
    number: int,
    order: int = 0,
    *,
    node: str | None = None,
    cidr: str = "",
    end: int = 0,
    data: BackendData | None = None,
    kind: str = "vxlan",
) -> Lease:
    subnet = ip_network(cidr or f"10.5.{number}.0/24")
    data = data or VxlanData(1, f"02:00:00:00:00:{number:02x}")
    part = Subnet(subnet, ip_address(f"10.99.0.{end or number}"), data)
    name = str(subnet).replace("/", "-")
    return Lease(name, f"h{number}" if node is None else node, (part,), kind, claim_order=order)


def lost(*leases: Lease, network: str = "") -> dict[str, str]:
    """The kinds of conflict by the lease that loses, which are the same in every order of arrival."""
    config = HOLDS_UNDERLAY if network else NETWORK
    found = []
    for order in (leases, leases[::-1]):
        claims = [(each, subnet) for each in order for subnet in each.subnets]
        known = ConflictIndex(config, claims)
        found.append({n: x.kind for (n, _), x in losses(config, claims).items()})
        assert known.any() >= bool(found[-1])
    assert found[0] == found[1]
    return found[0]


H4 = lease(4, 40)

CASES: Sequence[tuple[str, Lease, str]] = [
    ("a MAC", lease(1, 50, data=H4.subnets[0].data), "shared-mac"),
    ("a MAC in capitals", lease(1, 50, data=VxlanData(1, "02:00:00:00:00:04".upper())), "shared-mac"),
    ("a public address", lease(1, 50, end=4), "shared-address"),
    ("a part of the subnet", lease(1, 50, cidr="10.5.4.0/25"), "overlap"),
    ("more than the subnet", lease(1, 50, cidr="10.5.4.0/22"), "overlap"),
]


@pytest.mark.parametrize(("what", "claim", "kind"), CASES, ids=[row[0] for row in CASES])
def test_the_incumbent_keeps_what_another_claims(what: str, claim: Lease, kind: str) -> None:
    assert lost(H4, claim) == {claim.name: kind}, "the younger claim loses"
    assert lost(H4, replace(claim, claim_order=7)) == {H4.name: kind}, "and the older one does not"
    assert lost(H4, replace(claim, claim_order=7, node="")) == {claim.name: kind}, "unless nobody is known to hold it"
    assert lost(H4, replace(claim, claim_order=0)) == {claim.name: kind}, "an age that is not told is the youngest"


def test_of_one_age_the_name_decides() -> None:
    assert list(lost(lease(1), lease(2, end=1))) == ["10.5.2.0-24"]


def test_a_public_key_is_one_nodes_and_an_address_is_where_the_backend_says_so() -> None:
    first, second = (lease(n, n, end=9, data=WireguardData(KEY, 51820), kind="wireguard") for n in (1, 2))
    assert lost(first, second) == {second.name: "shared-key"}
    same = replace(second, subnets=(replace(second.subnets[0], data=WireguardData("A" * 42 + "9=", 51820)),))
    assert lost(first, same) == {same.name: "shared-key"}, "32 bytes said otherwise are the same"
    other = replace(second, subnets=(replace(second.subnets[0], data=WireguardData("B" * 43 + "=", 51820)),))
    assert lost(first, other) == {}
    both = [replace(each, backend_type="vxlan") for each in (first, other)]
    assert lost(*both) == {other.name: "shared-address"}


def test_of_two_subnets_of_one_node_a_public_key_has_the_newer_one() -> None:
    """WireGuard's peer is its key: one with other subnets would replace it, at each comparison anew."""
    for node in ("h1", ""):
        first, second, third = (
            lease(n, n * 10, node=node, end=9, data=WireguardData(KEY, 51820), kind="wireguard") for n in (1, 2, 3)
        )
        assert lost(first, second) == {first.name: "superseded"}
        assert lost(first, third, second) == {first.name: "superseded", second.name: "superseded"}
        assert lost(first, replace(second, node="h7")) == {(second if node else first).name: "shared-key"}


def test_who_lost_takes_nothing_from_anybody() -> None:
    thief = lease(1, 50, cidr="10.5.4.0/25", end=7)  # has lost to h4 for its subnet
    honest = lease(7, 60)
    assert lost(H4, thief, honest) == {thief.name: "overlap"}
    other_thief = replace(lease(2, 55, cidr="10.5.4.128/25", end=7))
    assert lost(H4, thief, other_thief, honest) == {thief.name: "overlap", other_thief.name: "overlap"}


def test_one_node_that_says_the_same_in_two_leases_is_no_rival_of_itself() -> None:
    moved = lease(9, 50, node="h4", end=4, data=H4.subnets[0].data)
    assert lost(H4, moved) == {}
    unknown = [replace(each, node="") for each in (H4, moved)]
    assert lost(*unknown) == {}, "a flanneld that changes its subnet"
    assert lost(H4, replace(moved, node="h5")) == {moved.name: "shared-address"}


def test_a_subnet_and_a_public_address_in_it_cannot_both_be_carried() -> None:
    wide, inner = lease(1, 10, cidr="10.99.0.0/24", end=200), lease(4, 20)
    assert lost(wide, inner, network="wide") == {inner.name: "inner-address"}
    assert lost(replace(wide, claim_order=30), inner, network="wide") == {wide.name: "peer-address"}


@pytest.mark.parametrize(
    ("network", "inner", "outer"),
    [
        (
            '{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}',
            ("10.0.0.0", "10.255.255.255"),
            ("9.255.255.255", "11.0.0.0"),
        ),
        (
            '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00::/48","Backend":{"Type":"vxlan"}}',
            ("fd00::", "fd00:0:0:ffff:ffff:ffff:ffff:ffff"),
            ("fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fd00:0:1::"),
        ),
    ],
)
def test_the_first_and_the_last_address_of_the_network_are_where_leases_may_lie(
    network: str, inner: tuple[str, str], outer: tuple[str, str]
) -> None:
    def conflicts(public: str) -> list[tuple[str, str]]:
        address = ip_address(public)
        wide = Subnet(ip_network(f"{public}/{address.max_prefixlen - 8}", strict=False), None, None)
        node = Subnet(ip_network("172.16.0.0/24" if address.version == 4 else "fe80::/64"), address, None)
        known = ConflictIndex(parse_network(network), [(Lease("wide", "a", (wide,), "vxlan"), wide)])
        return list(known.conflicts((Lease("node", "b", (node,), "vxlan"), node)))

    assert {each: conflicts(each) for each in inner} == {each: [("inner-address", "wide")] for each in inner}
    assert {each: conflicts(each) for each in outer} == {each: [] for each in outer}


numbers = st.integers(1, 4)
made = st.builds(
    lambda n, order, node, end, mac, length: replace(
        lease(
            n, order, node=node, end=end, cidr=f"10.5.{n * 4}.0/{length}", data=VxlanData(1, f"02:00:00:00:00:0{mac}")
        ),
    ),
    numbers,
    st.integers(0, 3),
    st.sampled_from(["", "a", "b"]),
    numbers,
    numbers,
    st.sampled_from([22, 24, 25]),
)


@given(st.lists(made, max_size=8, unique_by=lambda each: each.name), st.randoms(use_true_random=False))
def test_what_comes_and_goes_ends_as_told_at_once(leases: list[Lease], random: Random) -> None:
    claims = [(each, each.subnets[0]) for each in leases]
    once = losses(NETWORK, claims)
    random.shuffle(claims)
    assert losses(NETWORK, claims) == once
    known, gone = ConflictIndex(NETWORK), claims[: len(claims) // 2]
    clashed = [known.add(claim) for claim in claims]
    assert any(clashed) == bool(once)
    clashed = [known.remove(claim) for claim in gone]
    left = claims[len(gone) :]
    if not any(clashed):
        assert losses(NETWORK, left).keys() == once.keys()
    clashing = {name for lease, subnet in left for _, name in known.conflicts((lease, subnet)) if name != lease.name}
    assert bool(clashing) == bool(losses(NETWORK, left))
    best = min(leases, key=rank_of, default=None)
    assert best is None or (best.name, 4) not in once, "the best of all keeps its own"
