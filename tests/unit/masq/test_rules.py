"""The rule model: what is wanted in which situation, and what it means packet by packet."""

from ipaddress import ip_network
from itertools import product
from typing import Any

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, IPV6, Family
from flannelette.services.core.network import parse_network
from tests.examples.masq_rules import NO_CHAINS, chains, decided_by, explained, is_masquerading

DUAL = parse_network(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
)
IPV4_ONLY = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
SUBNETS = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))


def outline(found: Any) -> list[tuple[str, str, int]]:
    return [(str(chain.family), chain.name, len(chain.rules)) for chain in found]


def nat(**flags: bool) -> dict[str, Any]:
    return {str(chain.family): chain for chain in chains(DUAL, SUBNETS, **flags) if chain.table == "nat"}


def test_both_families_have_the_same_rules() -> None:
    assert outline(chains(DUAL, SUBNETS)) == [
        ("IPv4", "FLANNEL-POSTRTG", 6),
        ("IPv4", "FLANNEL-FWD", 2),
        ("IPv6", "FLANNEL-POSTRTG", 6),
        ("IPv6", "FLANNEL-FWD", 2),
    ]


def test_nothing_is_decided_before_the_network_is_known() -> None:
    assert chains(None, SUBNETS) == ()


def test_the_forward_rules_do_not_wait_for_the_lease() -> None:
    assert outline(chains(DUAL, ())) == [("IPv4", "FLANNEL-FWD", 2), ("IPv6", "FLANNEL-FWD", 2)]


def test_a_family_waits_for_its_own_subnet_only() -> None:
    assert outline(chains(DUAL, SUBNETS[1:])) == [
        ("IPv4", "FLANNEL-FWD", 2),
        ("IPv6", "FLANNEL-POSTRTG", 6),
        ("IPv6", "FLANNEL-FWD", 2),
    ]


def test_a_family_that_the_network_lacks_shall_have_no_chains() -> None:
    assert outline(chains(IPV4_ONLY, SUBNETS))[2:] == [
        ("IPv6", "FLANNEL-POSTRTG", 0),
        ("IPv6", "FLANNEL-FWD", 0),
    ]


def test_what_is_switched_off_shall_not_exist_even_before_the_network_is_known() -> None:
    off = {"masquerade": False, "forward": False}
    assert chains(None, (), **off) == chains(DUAL, SUBNETS, **off) == NO_CHAINS


def test_forward_rules_are_there_without_masquerade() -> None:
    assert outline(chains(IPV4_ONLY, SUBNETS, masquerade=False))[:2] == [
        ("IPv4", "FLANNEL-POSTRTG", 0),
        ("IPv4", "FLANNEL-FWD", 2),
    ]


@pytest.mark.parametrize("fully_random", [True, False])
def test_source_ports_are_random_unless_that_is_switched_off(fully_random: bool) -> None:
    rules = nat(fully_random=fully_random)["IPv4"].rules
    assert [rule.fully_random for rule in rules if is_masquerading(rule)] == [fully_random] * 2


def test_every_rule_and_every_jump_has_a_reason() -> None:
    for chain in chains(DUAL, SUBNETS):
        assert chain.reason.endswith(".")
        assert all(rule.reason.endswith(".") for rule in chain.rules)


OUT = ("10.5.27.2", "198.51.100.9")
"""A packet of a pod of this node to the outside."""
PLACES = {
    "own pod": ("10.5.27.2", "fd00:10:5:1b::2"),
    "other pod": ("10.5.3.2", "fd00:10:5:3::2"),
    "node": ("192.0.2.1", "2001:db8::1"),
    "outside": ("198.51.100.9", "2001:db8:9::9"),
    "multicast": ("224.0.0.251", "ff02::fb"),
}
MASQUERADED = {
    ("own pod", "node"),
    ("own pod", "outside"),
    ("other pod", "other pod"),
    ("other pod", "node"),
    ("other pod", "outside"),
    ("node", "other pod"),
    ("outside", "other pod"),
}
"""Everything else keeps its source. Other pod to other pod passes this node only when it is misrouted."""


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize(("source", "destination"), [p for p in product(PLACES, PLACES) if p[0] != "multicast"])
def test_who_is_masqueraded_on_the_way_to_whom(family: Family, source: str, destination: str) -> None:
    column = FAMILIES.index(family)
    chain = nat()[str(family)]
    place = decided_by(chain, PLACES[source][column], PLACES[destination][column])
    masqueraded = place is not None and is_masquerading(chain.rules[place])
    assert masqueraded is ((source, destination) in MASQUERADED)


def test_what_kube_proxy_marked_is_left_to_it() -> None:
    chain = nat()["IPv4"]
    assert decided_by(chain, *OUT, mark=0x4000) == 0
    assert decided_by(chain, *OUT, mark=0xC001) == 0
    assert decided_by(chain, *OUT, mark=0x8000) == 4


def test_the_explanation_names_the_packet_and_the_reason() -> None:
    chain = nat()["IPv4"]
    assert explained(*OUT, chain.rules[4]) == (
        "10.5.27.2 to 198.51.100.9: leaves under the address of the interface it leaves by. "
        "Hosts outside the overlay have no route back to a pod; multicast needs no answer."
    )
    assert "stays" in explained(*OUT, chain.rules[0])
    assert "no rule of ours" in explained(*OUT, None)


def test_the_families_are_told_apart_by_their_row_only() -> None:
    found = nat()
    assert {chain.family for chain in found.values()} == {IPV4, IPV6}
    assert [r.reason for r in found["IPv4"].rules] == [r.reason for r in found["IPv6"].rules]
