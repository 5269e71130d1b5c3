"""Rules of other programs, read from the kernel, and what becomes of a packet in them."""

import re
from ipaddress import ip_network

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, Family
from flannelette.services.masq.diagnose.nft_rules import read_nft
from flannelette.services.masq.diagnose.verdict import Drop, Flow, ForeignRule, ForeignTable, NfHook, fate
from flannelette.services.masq.diagnose.xt_rules import read_legacy
from flannelette.services.masq.kernel.legacy_tables import TableReader
from tests.hosts.masq import Host

HERE = {4: ip_network("10.5.27.0/24"), 6: ip_network("fd00:10:5:1b::/64")}
NETWORK = {4: ip_network("10.5.0.0/16"), 6: ip_network("fd00:10:5::/48")}
ELSEWHERE = {4: "192.0.2.0/24", 6: "2001:db8::/32"}
POLICY = "policy"
LINES = (
    "-A FORWARD -s {net} -d {other} -j ACCEPT",
    "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
    "-A FORWARD -o docker+ -m conntrack -j ACCEPT",
    "-A FORWARD ! -d {net} -p udp --dport 8472 -j DROP",
    "-A FORWARD -p tcp --dport 20:80 -m comment -j RETURN",
    "-A FORWARD -j OTHER",
    "-A OTHER -p tcp -j REJECT",
    "-A OTHER -j MARK",
)
OPTIONS = {
    "-m conntrack": "-m conntrack --ctstate RELATED,ESTABLISHED",
    "-m comment": "-m comment --comment x",
    "-j MARK": "-j MARK --set-mark 1",
}


def tables(host: Host, firewall: str, family: Family = IPV4) -> list[ForeignTable]:
    return [read_legacy(raw) for raw in TableReader(family).tables()] if firewall == "legacy" else read_nft()


def fates(host: Host, firewall: str, flow: Flow) -> list[Drop]:
    family = next(family for family in FAMILIES if family.version == flow.source.version)
    found = [drop for table in tables(host, firewall, family) for drop in fate([table], (NfHook.FORWARD,), flow)]
    return [drop for drop in found if drop.is_certain or drop.rule is None]


def remove(host: Host, firewall: str, family: Family, table: str, rule: ForeignRule) -> None:
    host.run(program(firewall, family), "-t", table, "-D", rule.chain, str(rule.number))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_rule_of_a_legacy_table_is_read_as_iptables_writes_it(family: Family, host: Host) -> None:
    host.run(program("legacy", family), "-N", "OTHER")
    lines = [line.format(net=NETWORK[family.version], other=ELSEWHERE[family.version]) for line in LINES]
    for line in lines:
        for short, long in OPTIONS.items():
            line = line.replace(short, long)
        host.run(program("legacy", family), *line.split())
    (table,) = tables(host, "legacy", family)
    read = [rule.text for name in ("FORWARD", "OTHER") for rule in table.chains[name].rules]
    wanted = [line.replace(" -m comment", "").replace("-m conntrack", OPTIONS["-m conntrack"]) for line in lines]
    assert [text.replace("ESTABLISHED,RELATED", "RELATED,ESTABLISHED") for text in read] == wanted
    assert [rule.number for rule in table.chains["FORWARD"].rules] == list(range(1, 7))
    for chain in table.chains.values():
        for rule in reversed(chain.rules):
            remove(host, "legacy", family, "filter", rule)
    assert not any(chain.rules for chain in tables(host, "legacy", family)[0].chains.values())


def program(firewall: str, family: Family) -> str:
    return f"ip{'6' if family.version == 6 else ''}tables-{firewall}"


CASES = {
    "nothing": ([], None),
    "a policy": (["-P FORWARD DROP"], (POLICY, True)),
    "a policy, and all is accepted": (["-P FORWARD DROP", "-A FORWARD -j ACCEPT"], None),
    "a policy, and the network is accepted": (["-P FORWARD DROP", "-A FORWARD -s {net} -j ACCEPT"], None),
    "a policy, and others are accepted": (["-P FORWARD DROP", "-A FORWARD -s {other} -j ACCEPT"], (POLICY, True)),
    "a policy, and what is established is accepted": (
        ["-P FORWARD DROP", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"],
        (POLICY, True),
    ),
    "a policy, and some interface is accepted": (
        ["-P FORWARD DROP", "-A FORWARD -i eth7 -j ACCEPT"],
        (POLICY, False),
    ),
    "a policy, and a port is accepted": (
        ["-P FORWARD DROP", "-A FORWARD -p tcp --dport 80 -j ACCEPT"],
        (POLICY, False),
    ),
    "a rule": (["-A FORWARD -d {net} -j DROP"], ("-d {net}", True)),
    "a rule that rejects, in a chain": (["-N C", "-A C -j REJECT", "-A FORWARD -j C"], ("REJECT", True)),
    "a rule for a part": (["-A FORWARD -d {here} -p tcp -j DROP"], None),
    "a rule behind one that accepts": (["-A FORWARD -s {net} -j ACCEPT", "-A FORWARD -j DROP"], None),
    "a rule behind one that returns": (
        ["-N C", "-A C -s {net} -j RETURN", "-A C -j DROP", "-A FORWARD -j C"],
        None,
    ),
    "a rule behind one that may return": (["-N C", "-A C -p tcp -j RETURN", "-A C -j DROP", "-A FORWARD -j C"], None),
    "a chain that is gone to": (
        ["-P FORWARD DROP", "-N C", "-A C -j MARK --set-mark 1", "-A FORWARD -g C", "-A FORWARD -j ACCEPT"],
        (POLICY, True),
    ),
    "all but others": (["-A FORWARD ! -s {other} -j DROP"], ("{other}", True)),
    "docker": (
        [
            "-P FORWARD DROP", "-N DOCKER", "-N DOCKER-USER", "-A FORWARD -j DOCKER-USER",
            "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A FORWARD -o docker0 -j DOCKER", "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
            "-A DOCKER -d {other} ! -i docker0 -o docker0 -p tcp --dport 80 -j ACCEPT", "-A DOCKER-USER -j RETURN",
        ],
        (POLICY, True),
    ),
}  # fmt: skip
"""What is done, and what drops what comes for pods of this node."""


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("firewall", ["legacy", "nft"])
@pytest.mark.parametrize("name", CASES)
def test_what_drops_a_packet_is_known(name: str, firewall: str, family: Family, host: Host) -> None:
    lines, wanted = CASES[name]
    words = {
        "net": NETWORK[family.version],
        "here": HERE[family.version],
        "other": ELSEWHERE[family.version],
    }
    for line in lines:
        host.run(program(firewall, family), *line.format(**words).split())
    bridge = ("flannel.1", "cni0") if name == "docker" else ("", "")
    found = fates(host, firewall, Flow(NETWORK[family.version], HERE[family.version], *bridge))
    if wanted is None:
        assert found == []
        return
    (drop,) = found
    text, is_certain = wanted
    assert drop.is_certain is is_certain
    assert drop.chain == "FORWARD"
    said = drop.rule.text if drop.rule else POLICY
    assert re.sub(r"^-\w ", "", text.format(**words)).lower() in said.lower()
    if drop.rule:
        remove(host, firewall, family, "filter", drop.rule)
        assert fates(host, firewall, Flow(NETWORK[family.version], HERE[family.version])) == []


NATIVE = """
table inet filter {{
  chain forward {{
    type filter hook forward priority 0; policy drop;
    {rules}
  }}
}}
"""
NATIVE_CASES = {
    "": (True, True),
    "ct state established,related accept": (True, True),
    "ct state new accept": None,
    "ip saddr 10.5.0.0/16 accept": (False, True),
    "ip saddr 10.5.27.0/24 accept": (True, True),
    "ip saddr 10.0.0.0/9 accept": (False, True),
    "ip saddr { 10.5.0.0/16, 10.6.0.0/16 } accept": (False, True),
    "ip saddr { 10.4.0.0-10.5.255.255, 10.99.0.1 } accept": (False, True),
    "ip saddr { 10.5.27.0/24, 10.6.0.0/16 } accept": (True, True),
    "ip saddr != { 10.5.0.0/16, 10.6.0.0/16 } accept": (True, True),
    "iif lo accept": (True, True),
    "ct status dnat accept": (True, True),
    "tcp dport { 22, 80-90 } return": (True, True),
    "iifname { lo, cni0 } accept": (True, True),
    "ip saddr . udp dport { 10.5.0.0/16 . 53 } accept; iifname cni0 return": (True, True),
    "ip saddr 10.5.0.0/16 ip daddr 10.5.27.0/24 accept": (False, True),
    "ip saddr . ip daddr { 10.5.0.0/16 . 10.5.0.0/16 } accept": (False, True),
    "meta mark & 0x8000 == 0x8000 accept": (True, True),
    "meta mark set 0x7; meta mark 0x7 accept": (False, False),
    "meta mark set meta mark | 0x4; meta mark & 0x4 != 0x4 return; accept": (False, False),
    "meta nfproto vmap { ipv6 : drop }; ip saddr vmap { 10.5.0.0/16 : accept, 10.7.0.0/16 : drop }": (False, True),
    "meta nfproto ipv4 accept": (False, True),
    "iifname cni0 accept": (True, True),
    "ct state vmap { established : accept, invalid : drop }": (True, True),
    "accept": None,
}
"""Rules, and whether the policy still drops IPv4 and IPv6; None: neither."""


@pytest.mark.parametrize("rules", NATIVE_CASES)
def test_a_chain_of_nftables_for_both_families_is_read(rules: str, host: Host) -> None:
    host.run("nft", "-f", "-", stdin=NATIVE.format(rules=rules))
    wanted = NATIVE_CASES[rules]
    for family, is_dropped in zip(FAMILIES, wanted or (False, False), strict=True):
        found = fates(host, "nft", Flow(NETWORK[family.version], HERE[family.version]))
        assert [drop.chain for drop in found] == ["forward"] * is_dropped
        is_doubtful = "iifname" in rules or "27" in rules
        applies = family is IPV4 or "ip saddr" not in rules
        assert all(drop.is_certain is not (is_doubtful and applies) for drop in found)
