"""The rule model: what is wanted in which situation, and what it means packet by packet."""

from ipaddress import ip_address, ip_network
from itertools import product

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, IPV6, Family
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.masq.rules.model import (
    Action,
    Chain,
    Packet,
    RuleSettings,
    deciding_rule,
    explanation,
    no_chains,
    wanted_chains,
)

DUAL = parse_network(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
)
IPV4_ONLY = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
SUBNETS = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))
ALL = RuleSettings(masquerade=True, forward=True, fully_random=True)


def outline(chains: tuple[Chain, ...]) -> list[tuple[str, str, int]]:
    return [(str(chain.family), chain.name, len(chain.rules)) for chain in chains]


def nat(network: NetworkConfig = DUAL, settings: RuleSettings = ALL) -> dict[str, Chain]:
    return {str(c.family): c for c in wanted_chains(network, SUBNETS, settings) if c.table == "nat"}


def test_both_families_have_the_same_rules() -> None:
    assert outline(wanted_chains(DUAL, SUBNETS, ALL)) == [
        ("IPv4", "FLANNEL-POSTRTG", 6),
        ("IPv4", "FLANNEL-FWD", 2),
        ("IPv6", "FLANNEL-POSTRTG", 6),
        ("IPv6", "FLANNEL-FWD", 2),
    ]


def test_nothing_is_decided_before_the_network_is_known() -> None:
    assert wanted_chains(None, SUBNETS, ALL) == ()


def test_the_forward_rules_do_not_wait_for_the_lease() -> None:
    assert outline(wanted_chains(DUAL, (), ALL)) == [("IPv4", "FLANNEL-FWD", 2), ("IPv6", "FLANNEL-FWD", 2)]


def test_a_family_waits_for_its_own_subnet_only() -> None:
    assert outline(wanted_chains(DUAL, SUBNETS[1:], ALL)) == [
        ("IPv4", "FLANNEL-FWD", 2),
        ("IPv6", "FLANNEL-POSTRTG", 6),
        ("IPv6", "FLANNEL-FWD", 2),
    ]


def test_a_family_that_the_network_lacks_shall_have_no_chains() -> None:
    assert outline(wanted_chains(IPV4_ONLY, SUBNETS, ALL))[2:] == [
        ("IPv6", "FLANNEL-POSTRTG", 0),
        ("IPv6", "FLANNEL-FWD", 0),
    ]


def test_what_is_switched_off_shall_not_exist_even_before_the_network_is_known() -> None:
    off = RuleSettings(masquerade=False, forward=False, fully_random=True)
    assert wanted_chains(None, (), off) == wanted_chains(DUAL, SUBNETS, off) == no_chains()


def test_forward_rules_are_there_without_masquerade() -> None:
    chains = wanted_chains(IPV4_ONLY, SUBNETS, RuleSettings(masquerade=False, forward=True, fully_random=True))
    assert outline(chains)[:2] == [("IPv4", "FLANNEL-POSTRTG", 0), ("IPv4", "FLANNEL-FWD", 2)]


@pytest.mark.parametrize("fully_random", [True, False])
def test_source_ports_are_random_unless_that_is_switched_off(fully_random: bool) -> None:
    rules = nat(settings=RuleSettings(masquerade=True, forward=True, fully_random=fully_random))["IPv4"].rules
    assert [rule.fully_random for rule in rules if rule.action is Action.MASQUERADE] == [fully_random] * 2


def test_every_rule_and_every_jump_has_a_reason() -> None:
    for chain in wanted_chains(DUAL, SUBNETS, ALL):
        assert chain.reason.endswith(".")
        assert all(rule.reason.endswith(".") for rule in chain.rules)


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
    packet = Packet(ip_address(PLACES[source][column]), ip_address(PLACES[destination][column]))
    chain = nat()[str(family)]
    place = deciding_rule(chain, packet)
    masqueraded = place is not None and chain.rules[place].action is Action.MASQUERADE
    assert masqueraded is ((source, destination) in MASQUERADED)


def test_what_kube_proxy_marked_is_left_to_it() -> None:
    chain = nat()["IPv4"]
    pod, outside = ip_address("10.5.27.2"), ip_address("198.51.100.9")
    assert deciding_rule(chain, Packet(pod, outside, mark=0x4000)) == 0
    assert deciding_rule(chain, Packet(pod, outside, mark=0xC001)) == 0
    assert deciding_rule(chain, Packet(pod, outside, mark=0x8000)) == 4


def test_the_explanation_names_the_packet_and_the_reason() -> None:
    chain = nat()["IPv4"]
    packet = Packet(ip_address("10.5.27.2"), ip_address("198.51.100.9"))
    assert explanation(packet, chain.rules[4]) == (
        "10.5.27.2 to 198.51.100.9: leaves under the address of the interface it leaves by. "
        "Hosts outside the overlay have no route back to a pod; multicast needs no answer."
    )
    assert "stays" in explanation(packet, chain.rules[0])
    assert "no rule of ours" in explanation(packet, None)


def test_the_families_are_told_apart_by_their_row_only() -> None:
    chains = nat()
    assert {chain.family for chain in chains.values()} == {IPV4, IPV6}
    assert [r.reason for r in chains["IPv4"].rules] == [r.reason for r in chains["IPv6"].rules]
