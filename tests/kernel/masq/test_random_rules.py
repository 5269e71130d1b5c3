"""What masq says of packets in rules is what becomes of real ones: rules one by one, and at random."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_network

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.family import FAMILIES
from flannelette.services.masq.diagnose.flows import probes
from flannelette.services.masq.diagnose.nft_rules import read_nft
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.diagnose.verdict import TCP, Flow, ForeignTable, fate
from flannelette.services.masq.diagnose.xt_rules import read_legacy
from flannelette.services.masq.kernel.legacy_tables import TableReader
from tests.findings.random_rules import KINDS, Rules, random_rules
from tests.hosts.asked_packets import SERVICES, AskedPackets, asked_packets
from tests.hosts.four_hosts import IN
from tests.hosts.masq import Host, entered
from tests.hosts.namespaces import NamespaceMaker

_SEEDS = range(24)
_CHAINS = {
    "filter": "INPUT FORWARD OUTPUT",
    "mangle": "PREROUTING INPUT FORWARD OUTPUT POSTROUTING",
    "raw": "PREROUTING OUTPUT",
}
"""Of iptables, by table."""


@dataclass(frozen=True)
class Scene:
    """A host, inside of which the test is, and the packets that cross it."""

    host: Host
    packets: AskedPackets


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    make = NamespaceMaker()
    directory = tmp_path_factory.mktemp("rules")
    with asked_packets(make) as packets, entered(packets.lab.host, directory) as host:
        assert packets.lost() == set()
        yield Scene(host, packets)
    make.close()


_BASE = "table inet t {{ chain c {{ type filter hook {hook} priority {priority}; {rules} }}; }}"


def _chain(hook: str, rules: str, priority: int = 0) -> str:
    return f"nft '{_BASE.format(hook=hook, priority=priority, rules=rules)}'"


def _large(element: str, flags: str = "") -> str:
    """A set of so many elements that the kernel is asked about one."""
    others = "".join(f", 203.0.113.{number} . 787" for number in range(1, 251))
    made = f"set s {{ type ipv4_addr . inet_service; {flags} elements = {{ {element}{others} }}; }}; chain c"
    return _chain("forward", "ip saddr . udp dport @s drop;").replace("chain c", made)


ROWS = {
    "answers are not new": "iptables-nft -P FORWARD DROP; "
    "iptables-nft -A FORWARD -m conntrack --ctstate NEW -j ACCEPT",
    "a handshake ends in a connection that exists": "iptables-nft -A FORWARD -i pod -o eth -p tcp "
    "-m conntrack --ctstate ESTABLISHED -j DROP",
    "the status of connections that exist": _chain("forward", 'oifname "eth" ct status assured drop;'),
    "two states together": _chain("forward", "ct state != new,established accept; drop;"),
    "no status of new connections": _chain("forward", 'oifname "eth" ct status & (assured) == 0 drop;'),
    "no answer has the flags of a first packet": "iptables-nft -A FORWARD -o eth -j ACCEPT; "
    "iptables-nft -A FORWARD -i pod -p tcp ! --syn -j DROP",
    "answers of a ping": _chain("forward", "icmp type echo-reply drop;"),
    "the code of a ping": _chain("forward", "icmp code 1 drop; icmpv6 code 0 drop;"),
    "large datagrams": "iptables-nft -A FORWARD -p udp -m length --length 1000:65535 -j DROP",
    "no interface to leave by before a route is known": _chain("prerouting", 'oifname "vtep" drop;'),
    "no interface to come by for what the host sends": _chain("output", 'iifname != "docker0" udp dport 8472 drop;'),
    "no interface to come by at the end of what the host sends": _chain(
        "postrouting", 'iifname "eth" udp dport 8472 drop;'
    ),
    "nothing is new before connection tracking": "iptables-legacy -t raw -A PREROUTING -i pod "
    "-m conntrack --ctstate NEW,ESTABLISHED -j DROP",
    "all is invalid before connection tracking": "iptables-legacy -t raw -A PREROUTING -i pod "
    "-m conntrack ! --ctstate NEW,ESTABLISHED -j DROP",
    "what is not tracked, asked after": "iptables-legacy -t raw -A PREROUTING -i vtep -j CT --notrack; "
    "iptables-legacy -A FORWARD -m conntrack --ctstate UNTRACKED -j DROP",
    "what is not to be tracked, and is": _chain("prerouting", 'iifname "pod" notrack; ct state untracked drop;'),
    "the type of an address of this host": _chain("input", "fib daddr type != local drop;"),
    "the type of an address of another host": _chain("forward", "fib daddr type local drop;"),
    "the type of a broadcast address": _chain("forward", "fib daddr type broadcast drop;"),
    "addresses of this host are unicast in IPv6": "; ".join(
        f"{program} -t mangle -A POSTROUTING -p udp --dport 8472 -m addrtype ! --src-type UNICAST -j DROP"
        for program in ("iptables-legacy", "ip6tables-legacy")
    ),
    "types of addresses in a set": _chain("forward", "fib daddr type { broadcast, multicast, unicast } drop;"),
    "a pair that is in a large set": _large("10.5.27.2 . 787"),
    "a pair that is in no large set": _large("10.5.27.2 . 788"),
    "a pair in a range of a large set": _large("10.5.27.0/24 . 700-800", "flags interval;"),
    "lengths in a set": _chain("forward", "meta length { 84, 1450 } drop; ip length { 90-99, 1400-1499 } drop;"),
    "marks, codes and flags in a set": _chain(
        "forward", "meta mark { 0x0, 0x5 } udp dport 787 drop; icmp code { 0 } drop; tcp flags { syn } drop;"
    ),
    "status and directions in a set": _chain("forward", "ct status { assured } drop; ct direction { reply } drop;"),
    "the mark of a connection": _chain(
        "forward", 'iifname "pod" ct mark set 0x9; ct mark & 0x8 == 0x8 oifname "vtep" drop;'
    ),
    "a mark that a connection has kept": _chain(
        "forward", 'iifname "pod" udp dport 787 ct mark set 0x9; meta mark set ct mark; meta mark 0x9 drop;'
    ),
    "a mark that is saved, and restored": "iptables-legacy -t mangle -A PREROUTING -i vtep -j MARK --set-mark 6; "
    "iptables-legacy -t mangle -A PREROUTING -j CONNMARK --save-mark; "
    "iptables-legacy -t mangle -A PREROUTING -j MARK --set-mark 0; "
    "iptables-legacy -t mangle -A PREROUTING -j CONNMARK --restore-mark; "
    "iptables-legacy -A FORWARD -m mark --mark 6 -m conntrack --ctstate NEW -j DROP",
    "no connection before connection tracking": _chain(
        "prerouting", "ct mark != 5 drop; ct direction original drop;", -300
    ),
    "who began a connection": _chain(
        "forward",
        "ct original ip saddr 10.5.27.0/24 meta l4proto tcp drop; ct original ip6 daddr fd00:10:5:1b::2 drop;",
    ),
    "answers in a connection": "iptables-legacy -A FORWARD -p tcp -m conntrack --ctdir REPLY -j DROP",
    "addresses of a connection": "iptables-legacy -A FORWARD -p icmp "
    "-m conntrack --ctorigsrc 10.5.27.2 --ctproto icmp -j DROP; "
    "iptables-legacy -A FORWARD -m conntrack ! --ctorigdstport 787 -p udp -j DROP; "
    "ip6tables-legacy -A FORWARD -i pod -o vtep -m conntrack --ctrepldst fd00:10:5:1b::2 -j DROP",
    "classes of packets": _chain(
        "forward", "ip dscp != cs0 drop; ip6 dscp { cs0 } meta l4proto udp drop; ip version 6 drop;"
    ),
    "a class in iptables": "iptables-legacy -A FORWARD -p udp -m dscp ! --dscp 0x2e -j DROP; "
    "ip6tables-legacy -A FORWARD -m tos --tos 0x10 -j DROP",
    "no owner of what is forwarded": _chain("forward", "meta skuid != 0 drop; meta skuid { 0, 1000 } drop;"),
    "no owner of what carries pods' packets": "iptables-legacy -A OUTPUT -p udp --dport 8472 "
    "-m owner ! --uid-owner 77 -j DROP",
    "the length of a datagram": _chain("forward", "udp length 1000-2000 drop;"),
    "a return of some, and an end of all others": "iptables-legacy -N C; "
    "iptables-legacy -A C -m limit --limit 1/h --limit-burst 1 -j RETURN; iptables-legacy -A C -j ACCEPT; "
    "iptables-legacy -A C -j DROP; iptables-legacy -A FORWARD -j C",
    "a TTL that packets have": _chain("forward", "ip ttl < 65 drop; ip6 hoplimit < 63 drop;"),
    "a TTL that packets do not have": _chain("forward", "ip ttl < 55 drop; ip6 hoplimit > 64 drop;"),
    "a limit of each element": _chain("forward", "drop;")
    .replace("chain c", "set s { type ipv4_addr; size 99; flags dynamic; }; chain c")
    .replace("0; drop", "0; add @s { ip saddr limit rate over 100000/second } drop"),
    "a limit with a name": _chain("forward", 'limit name "l" drop;').replace(
        "chain c", "limit l { rate over 100000/second }; chain c"
    ),
    "a range of the first addresses": "ip6tables-nft -A FORWARD -m iprange ! --src-range ::-::1 -j DROP",
    "IPsec": "iptables-nft -A FORWARD -m policy --dir in --pol ipsec -j DROP",
}
"""Rules of which a wrong verdict was given once."""
UNDECIDED = {
    "the status of connections that exist",
    "a TTL that packets have",
    "a limit of each element",
    "a limit with a name",
    "IPsec",
}
"""Rows that ask for what nobody can know of packets beforehand: a warning."""


@pytest.mark.parametrize("row", ROWS)
def test_of_such_rules_what_is_said_of_packets_is_what_becomes_of_them(row: str, scene: Scene) -> None:
    scene.host.run("sh", "-ec", ROWS[row])
    try:
        assert _difference(scene.packets) == ""
        certain, perhaps = _verdict(scene.packets)
        assert bool(perhaps - certain) is (row in UNDECIDED)
    finally:
        _flush(scene.host)


@pytest.mark.parametrize("kind", KINDS)
def test_of_random_rules_what_is_lost_for_certain_is_lost_and_what_passes_for_certain_passes(
    kind: str, scene: Scene
) -> None:
    tried = 0
    for seed in _SEEDS:
        rules = random_rules(seed, kind)
        if _takes(scene.host, rules):
            tried += 1
            difference = _difference(scene.packets)
            assert not difference, f"seed {seed}: {difference}\n{rules.text}"
            _flush(scene.host)
    assert tried > len(_SEEDS) // 2, "most of what is written is what the programs take"


CURED = {
    "answers are not new": "",
    "a handshake ends in a connection that exists": "",
    "all is invalid before connection tracking": "",
    "the type of a broadcast address": "",
    "lengths in a set": "",
    "a policy before connection tracking": "connection tracking has not seen",
    "a rule at a card": "chains of netdev know no connections",
}
"""Rules, and why no cure lets all packets pass: before connection tracking nothing tells answers; empty: cures do."""
MORE = {
    "a policy before connection tracking": "nft 'table inet t { chain c { "
    "type filter hook prerouting priority -300; policy drop; }; }'",
    "a rule at a card": 'nft \'table netdev t { chain c { type filter hook ingress device "eth" priority 0; '
    "ip saddr != 192.0.2.0/24 drop; }; }'",
}


@pytest.mark.parametrize("row", CURED)
def test_a_command_is_a_cure_only_if_packets_pass_after_it(row: str, scene: Scene) -> None:
    scene.host.run("sh", "-ec", (ROWS | MORE)[row])
    try:
        typed = set[str]()
        while cures := [found.cure for found in _broken(scene.packets) if found.cure and found.cure not in typed]:
            typed.add(cures[0])
            scene.host.run("sh", "-ec", cures[0])
        left = _broken(scene.packets)
        assert not any(found.cure for found in left), "a command that was typed is not printed again"
        causes = [found.cause for found in left]
        assert bool(causes) is bool(CURED[row])
        assert [each for each in causes if CURED[row] not in each] == []
        certain, _ = _verdict(scene.packets)
        assert certain == scene.packets.lost(patient=True)
    finally:
        _flush(scene.host)


def _broken(packets: AskedPackets) -> list[Condition]:
    """Findings about rules that drop packets, as for a host without rules of ours."""
    pods, tunnel = packets.flows()
    tables = _tables()
    found = (*dropping(tables, "", list(map(_between_pods, pods))), *dropping(tables, "", tunnel))
    return [each for each in found if each.is_broken]


def _takes(host: Host, rules: Rules) -> bool:
    """Whether the program takes the rules, all of which are in force then, or refuses them."""
    try:
        host.run(*rules.command, stdin=rules.text)
    except AssertionError:
        return False
    return True


def _flush(host: Host) -> None:
    """No rule is left."""
    host.run("nft", "flush", "ruleset")
    for six in ("", "6"):
        for table, chains in _CHAINS.items():
            heads = [f":{chain} ACCEPT [0:0]" for chain in chains.split()]
            host.run(f"ip{six}tables-legacy-restore", stdin="\n".join([f"*{table}", *heads, "COMMIT", ""]))


def _difference(packets: AskedPackets) -> str:
    """What the verdict and the packets do not agree about; empty: they agree."""
    certain, perhaps = _verdict(packets)
    lost = packets.lost()
    if lost - certain - perhaps:
        lost &= packets.lost(patient=True)  # a host that is busy takes its time to answer
    passed, gone = sorted(certain - lost), sorted(lost - certain - perhaps)
    return f"said to be lost, and passes: {passed}; said to pass, and lost: {gone}" if passed or gone else ""


def _verdict(packets: AskedPackets) -> tuple[set[str], set[str]]:
    """The names of the packets that are lost for certain, and those that may be."""
    tables = _tables()
    pods, tunnel = packets.flows()
    certain, perhaps = set[str](), set[str]()
    for flow in (*map(_between_pods, pods), *tunnel):
        for probe in probes(flow, tables):
            drops = fate(tables, flow.way, probe)
            (certain if any(drop.is_certain for drop in drops) else perhaps).update([_name(probe)] if drops else [])
    return certain, perhaps


def _tables() -> list[ForeignTable]:
    legacy = [read_legacy(raw) for family in FAMILIES for raw in TableReader(family).tables()]
    return [*legacy, *read_nft()]


def _between_pods(flow: Flow) -> Flow:
    """The packets of the pods that are here, of all those of a flow."""
    a = IN[flow.source.version]
    own, other = ip_network(a.pod), ip_network(a.other_pod)
    if flow.name != "pods":
        return replace(flow, source=own) if flow.incoming == "pod" else replace(flow, destination=own)
    return replace(
        flow, source=other if flow.is_from_peers else own, destination=own if flow.is_from_peers else other
    )


def _name(probe: Flow) -> str:
    """As AskedPackets names what it tries."""
    version = probe.source.version
    if probe.name == "tunnel":
        return f"tunnel {'out' if probe.is_ours else 'in'} {version} {'small' if probe.length < 1000 else 'large'}"
    way = (
        f"pods {'in' if probe.is_from_peers is not probe.is_answer else 'out'}" if probe.name == "pods" else "outside"
    )
    if probe.protocol in (1, 58):
        return f"{way} {version} ICMP"
    port = probe.source_port if probe.is_answer else probe.port
    assert port in SERVICES
    return f"{way} {version} {'TCP' if probe.protocol == TCP else 'UDP'} {port}"
