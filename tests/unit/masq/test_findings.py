"""What is in the way of pods, and the command that cures it."""

from dataclasses import replace
from ipaddress import ip_network
from random import Random

import pytest

from flannelette.services.core.conditions import Condition as Found
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import flows_of, tunnel_of
from flannelette.services.masq.diagnose.host_checks import HostChecks, findings
from flannelette.services.masq.diagnose.verdict import (
    Bits,
    Condition,
    Flow,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    Marking,
    NfHook,
    concerning,
    fate,
)
from flannelette.services.masq.diagnose.verdict import Effect as Does
from flannelette.services.masq.firewalls.firewall import FirewallKind as Kind
from flannelette.services.masq.rules import RuleSettings

NETWORK = parse_network(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
)
SUBNETS = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))
IPV4, IPV6 = ([flow for flow in flows_of(NETWORK, SUBNETS) if flow.source.version == version] for version in (4, 6))
ALL = RuleSettings(masquerade=True, forward=True, fully_random=True)


def drops(firewall: str, version: int, chain: str) -> HostChecks:
    made = ForeignChain(chain, (), NfHook.FORWARD, 0, drops=True)
    return HostChecks(tables=(ForeignTable(firewall, version, "filter", {chain: made}),))


def found_in(around: HostChecks, kind: Kind, settings: RuleSettings = ALL) -> list[Found]:
    return findings(around, kind, [*IPV4, *IPV6], settings)


def cures(around: HostChecks, kind: Kind = Kind.IPTABLES_NFT, *, fully_random: bool = True) -> list[str]:
    found = found_in(around, kind, replace(ALL, fully_random=fully_random))
    assert all(each.problem.endswith(".") and each.cause.endswith(".") and each.evidence for each in found)
    return [each.cure for each in found]


def test_nothing_is_in_the_way_of_a_plain_host() -> None:
    assert cures(HostChecks()) == []


def test_a_kernel_that_does_not_forward() -> None:
    assert cures(HostChecks(not_forwarding=frozenset({4, 6}))) == [
        "sysctl -w net.ipv4.ip_forward=1",
        "sysctl -w net.ipv6.conf.all.forwarding=1",
    ]


def test_a_family_that_the_network_does_not_have_is_nobodys_business() -> None:
    around = replace(drops("iptables-legacy", 6, "FORWARD"), not_forwarding=frozenset({6}))
    assert findings(around, Kind.NFTABLES, IPV4, ALL) == []
    assert len(findings(around, Kind.NFTABLES, IPV6, ALL)) == 2


DEVICES = {4: "flannel.1", 6: "flannel-v6.1"}
ENDS = {4: ("10.5.27.0/24", "10.5.0.0/16"), 6: ("fd00:10:5:1b::/64", "fd00:10:5::/48")}


def appended(tool: str, version: int) -> str:
    """The two rules that accept what pods send, and what comes for them."""
    own, network = ENDS[version]
    return " && ".join(
        f"{tool} -t filter -A FORWARD -s {ends} -j ACCEPT"
        for ends in (f"{own} -d {network}", f"{network} -d {own} -i {DEVICES[version]}")
    )


def added(place: str, *versions: int) -> str:
    """The same with nft."""
    words = {4: "ip", 6: "ip6"}
    ways = [
        (words[version], *ends, by)
        for version in versions
        for ends, by in ((ENDS[version], ""), (ENDS[version][::-1], f"iifname {DEVICES[version]} "))
    ]
    return " && ".join(
        f"nft add rule {place} {word} saddr {source} {word} daddr {to} {by}accept" for word, source, to, by in ways
    )


@pytest.mark.parametrize(
    ("around", "kind", "cure"),
    [
        (drops("iptables-legacy", 4, "FORWARD"), Kind.LEGACY, []),
        (drops("iptables-legacy", 4, "FORWARD"), Kind.NFTABLES, [appended("iptables-legacy", 4)]),
        (drops("iptables-legacy", 6, "FORWARD"), Kind.IPTABLES_NFT, [appended("ip6tables-legacy", 6)]),
        (drops("nft", 4, "FORWARD"), Kind.IPTABLES_NFT, []),
        (drops("nft", 4, "FORWARD"), Kind.NFTABLES, [appended("iptables-nft", 4)]),
        (drops("nft", 4, "forward"), Kind.IPTABLES_NFT, [added("ip filter forward", 4)]),
        (drops("nft", 0, "forward"), Kind.IPTABLES_NFT, [added("inet filter forward", 4, 6)]),
    ],
)
def test_a_policy_that_drops_where_our_rules_are_not_stays_and_pods_are_accepted(
    around: HostChecks, kind: Kind, cure: list[str]
) -> None:
    assert [each.partition("  # ")[0] for each in cures(around, kind)] == cure
    assert all(each.is_broken for each in found_in(around, kind))


def test_where_our_forward_rules_are_switched_off_a_policy_that_drops_is_in_the_way_everywhere() -> None:
    (found,) = found_in(drops("nft", 4, "FORWARD"), Kind.IPTABLES_NFT, replace(ALL, forward=False))
    assert found.is_broken


@pytest.mark.parametrize("firewall", ["iptables-legacy", "nft"])
def test_a_rule_that_drops_is_named_with_what_accepts_pods_before_it(firewall: str) -> None:
    rule = ForeignRule(
        "-A FORWARD -s 10.5.0.0/16 -j DROP",
        (Condition(source=ip_network("10.5.0.0/16")),),
        Does.DROP,
        chain="FORWARD",
        number=7,
    )
    chain = ForeignChain("FORWARD", (rule,), NfHook.FORWARD)
    around = HostChecks(tables=(ForeignTable(firewall, 4, "filter", {"FORWARD": chain}),))
    (found,) = found_in(around, Kind.LEGACY)
    assert found.is_broken
    assert "`-A FORWARD -s 10.5.0.0/16 -j DROP`" in found.cause
    tool = "iptables-legacy" if firewall == "iptables-legacy" else "iptables-nft"
    assert found.cure.partition("  # ")[0] == appended(tool, 4).replace("-A FORWARD", "-I FORWARD 7")


def test_chains_that_are_read_while_they_change_may_seem_to_call_each_other() -> None:
    chains = {
        name: ForeignChain(name, (ForeignRule("", (), Does.JUMP, target),), hook, drops=hook is not None)
        for name, target, hook in (("FORWARD", "a", NfHook.FORWARD), ("a", "b", None), ("b", "a", None))
    }
    (found,) = found_in(HostChecks(tables=(ForeignTable("nft", 4, "other", chains),)), Kind.LEGACY)
    assert not found.is_broken


@pytest.mark.parametrize("is_made", [False, True])
def test_pods_pass_firewalld_by_a_policy_that_is_made_once(*, is_made: bool) -> None:
    """firewall-cmd 1.3 refuses both zones in one command, and a policy whose name it has."""
    zone = ForeignChain("filter_FWD_public", (ForeignRule("reject", (), Does.DROP, chain="filter_FWD_public"),))
    base = ForeignChain(
        "filter_FORWARD", (ForeignRule("", (), Does.GOTO, zone.name, "filter_FORWARD"),), NfHook.FORWARD, 10
    )
    chains = {"filter_FWD_policy_flannel": ForeignChain("filter_FWD_policy_flannel", ())} if is_made else {}
    table = ForeignTable("nft", 0, "firewalld", {base.name: base, zone.name: zone, **chains})
    commands = [each for cure in cures(HostChecks(tables=(table,))) for each in cure.split(" && ")]
    zones = [each.split("--policy=flannel ")[1] for each in commands if "-zone=" in each]
    assert ("firewall-cmd --permanent --new-policy=flannel" in commands) is not is_made, commands
    assert zones == [] if is_made else zones == ["--add-ingress-zone=ANY", "--add-egress-zone=ANY"], commands
    assert commands[-1] == "firewall-cmd --reload"


def test_the_panic_mode_of_firewalld_is_named_and_ended_by_nobody_else() -> None:
    made = ForeignChain("raw_prerouting", (), NfHook.PREROUTING, -290, drops=True)
    around = HostChecks(tables=(ForeignTable("nft", 0, "firewalld_policy_drop", {made.name: made}),))
    found = found_in(around, Kind.NFTABLES)
    assert [each.cure for each in found] == [""], found
    assert "panic mode, which `firewall-cmd --panic-off` ends" in found[0].cause
    assert "firewalld has set" in found[0].cause


def test_rules_in_both_kinds_of_iptables() -> None:
    around = HostChecks(side_by_side=frozenset({4}))
    assert cures(around, Kind.NFTABLES) == []
    assert cures(around, Kind.LEGACY) == [
        ""
    ]  # what drops packets is named by itself, and no other program's rules are taken away
    assert findings(around, Kind.IPTABLES_NFT, IPV6, ALL) == []


def test_connections_that_were_lost_for_want_of_random_ports() -> None:
    assert cures(HostChecks(insert_failed=3)) == []
    assert cures(HostChecks(insert_failed=3), fully_random=False) == [
        "start masq without --ip-masq-fully-random-disable"
    ]


def test_packets_of_a_network_with_a_name_pass_its_own_device() -> None:
    wireguard = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}')
    for suffix, device in (("", "flannel-wg"), ("-blue", "fl-wg-blue")):
        there, back, *_ = flows_of(wireguard, SUBNETS[:1], suffix)
        assert (there.outgoing, back.incoming) == (device, device)
        (carrier,) = tunnel_of(wireguard, suffix)
        assert device in carrier.elsewhere


def random_table(random: Random) -> ForeignTable:
    """Rules about addresses in and around those of pods, with chains that jump to each other."""
    ends = [ip_network(f"10.{random.choice((5, 6))}.{random.choice((27, 3))}.0/24") for _ in range(4)]
    ends += [ip_network("10.5.0.0/16"), ip_network("10.5.27.2/32"), ip_network("192.0.2.0/24")]

    def condition() -> Condition:
        one = Condition(random.choice((None, *ends)), random.choice((None, *ends)), negated=random.random() < 0.2)
        two = Condition(one_of=tuple(Condition(random.choice(ends)) for _ in range(random.randrange(3))))
        each = Condition(each=(one, Condition(protocol=random.choice((6, 17)))))
        return random.choice((one, one, two, each, replace(two, negated=True), replace(each, negated=True)))

    def rule(chain: str, below: str) -> ForeignRule:
        conditions = tuple(condition() for _ in range(random.choice((0, 1, 1, 2))))
        kind = random.choice((Does.DROP, Does.ACCEPT, Does.RETURN, Does.NOTHING, Does.JUMP, Does.GOTO))
        target = below if kind in (Does.JUMP, Does.GOTO) else ""
        marking = Marking(0xFFFF_FF00, 0, Bits(random.randrange(4))) if kind is Does.NOTHING else None
        return ForeignRule(str(random.random()), conditions, kind, target, chain, marking=marking)

    chains = {
        name: ForeignChain(name, tuple(rule(name, below) for _ in range(random.randrange(8))), hook)
        for name, below, hook in (("FORWARD", "one", NfHook.FORWARD), ("one", "two", None), ("two", "", None))
    }
    return ForeignTable("nft", 4, "filter", chains)


def test_rules_about_the_addresses_of_others_change_nothing() -> None:
    for seed in range(2_000):
        table = random_table(Random(seed))  # noqa: S311 - nothing is secret
        for flow in (IPV4[0], Flow(ip_network("10.5.27.2"), ip_network("10.5.3.2"), protocol=6, port=80)):
            near = concerning([table], flow)
            assert fate(near, flow.way, flow) == fate([table], flow.way, flow), (seed, table)
