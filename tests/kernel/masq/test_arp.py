"""Rules that drop ARP or neighbour discovery on a node without a tunnel: between its pods, and with a peer and a
router of its underlay.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.family import IPV6
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import neighbours_of, surroundings
from flannelette.services.masq.diagnose.nft_rules import read_nft
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.diagnose.xt_rules import read_legacy
from flannelette.services.masq.kernel.legacy_tables import TableReader
from tests.hosts.masq import Host, entered
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.watched_node import pings

NETWORK = parse_network(
    '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"host-gw"}}'
)
SUBNETS = (ip_network("10.5.27.0/24"), ip_network("fd00:10:5:1b::/64"))
PODS = {4: ("10.5.27.2", "10.5.27.3"), 6: ("fd00:10:5:1b::2", "fd00:10:5:1b::3")}
FAR = {4: ("10.5.53.1", "198.51.100.9"), 6: ("fd00:10:5:35::1", "2a04:4e42::9")}
_UNFILTERED = "net.bridge.bridge-nf-call-ip6tables=0"


@dataclass(frozen=True)
class Node:
    """A node, inside of which the test is, with two pods, a peer, and a router to the outside."""

    host: Host
    pods: tuple[NetworkNamespace, NetworkNamespace]
    peer: NetworkNamespace

    def lost(self, version: int = 4) -> set[str]:
        """What does not pass once nobody knows a neighbour."""
        (first, second), (peers_pod, outside) = self.pods, FAR[version]
        found = set[str]()
        for name, host, to in (
            ("between pods", first, PODS[version][1]),
            ("to a peer", first, peers_pod),
            ("to the outside", second, outside),
            ("from a peer", self.peer, PODS[version][1]),
        ):
            for each in (self.host.netns, self.peer, *self.pods):
                each.ip("neigh", "flush", "all")
            found |= set() if pings(host, to) else {name}
        return found

    def found(self) -> list[Condition]:
        """What masq says."""
        tables = [*read_nft(), *(read_legacy(raw) for raw in TableReader(IPV6).tables())]
        return dropping(tables, "", neighbours_of(NETWORK, SUBNETS, surroundings(NETWORK, SUBNETS, "")))

    def restore(self) -> None:
        """No rule is left."""
        self.host.run("nft", "flush", "ruleset")
        self.host.run("ip6tables-legacy", "-F")
        self.host.run("sysctl", "-eqw", _UNFILTERED)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    make = NamespaceMaker()
    here, peer, pods = make(), make(), (make(), make())
    make.connect(here, "10.99.0.11/16", peer, "10.99.0.12/16")
    for line in (
        "addr add fd00:99::11/64 dev eth0 nodad",
        "link add cni0 type bridge",
        "link set cni0 up",
        "addr add 10.5.27.1/24 dev cni0",
        "addr add fd00:10:5:1b::1/64 dev cni0 nodad",
        "route add 10.5.53.0/24 via 10.99.0.12",
        "route add fd00:10:5:35::/64 via fd00:99::12",
        "route add default via 10.99.0.1",
        "route add default via fd00:99::1",
    ):
        here.ip(*line.split())
    here.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    here.run("sysctl", "-eqw", _UNFILTERED)
    for number, pod in enumerate(pods, 2):
        here.ip(*f"link add veth{number} type veth peer name eth0 netns {pod.name}".split())
        here.ip(*f"link set veth{number} master cni0 up".split())
        for line in (
            f"addr add 10.5.27.{number}/24 dev eth0",
            f"addr add fd00:10:5:1b::{number}/64 dev eth0 nodad",
            "link set eth0 up",
            "route add default via 10.5.27.1",
            "route add default via fd00:10:5:1b::1",
        ):
            pod.ip(*line.split())
    peer.run("sysctl", "-qw", "net.ipv6.conf.all.forwarding=1")
    for line in (
        "addr add 10.99.0.1/16 dev eth0",
        "addr add fd00:99::12/64 dev eth0 nodad",
        "addr add fd00:99::1/64 dev eth0 nodad",
        "route add 10.5.27.0/24 via 10.99.0.11",
        "route add fd00:10:5:1b::/64 via fd00:99::11",
    ):
        peer.ip(*line.split())
    for address in ("10.5.53.1/32", "198.51.100.9/32", "fd00:10:5:35::1/128", "2a04:4e42::9/128"):
        peer.ip("addr", "add", address, "dev", "lo")
    with entered(here, tmp_path_factory.mktemp("arp")) as host:
        yield Node(host, pods, peer)
    make.close()


_FORWARD = "type filter hook forward priority 0;"
ROWS = {
    "between pods": (
        f"table bridge f {{ chain c {{ {_FORWARD} policy drop; meta protocol {{ ip, ip6 }} accept; }}; }}",
        "Packets of ARP between pods of this node are",
        {"between pods"},
    ),
    "answers of one pod": (
        f'table bridge f {{ chain c {{ {_FORWARD} iifname "veth3" arp operation reply drop; }}; }}',
        "ARP replies between pods of this node are",
        {"between pods"},
    ),
    "all but a router": (
        "table arp f { chain c { type filter hook output priority 0; policy drop; arp daddr ip 10.99.0.1 accept; "
        'oifname "cni0" accept; }; }',
        "Packets of ARP between this host and 10.99.0.12 are",
        {"to a peer", "from a peer"},
    ),
    "a router": (
        "table arp f { chain c { type filter hook input priority 0; arp saddr ip . arp operation "
        "{ 10.99.0.1 . reply, 10.99.0.99 . request } drop; }; }",
        "ARP replies between this host and 10.99.0.1 are",
        {"to the outside"},
    ),
    "what the host asks, of all": (
        'table netdev f { chain c { type filter hook egress device "eth0" priority 0; meta pkttype broadcast drop; '
        "arp operation 1 drop; }; }",
        "ARP requests between this host and 10.99.0.1, 10.99.0.12 are",
        {"to a peer", "to the outside"},
    ),
}
"""What is typed, what masq says, and what is lost."""

_ALL = "between this host and its pods, and between this host and fd00:99::1, fd00:99::12 are"
_BEYOND = {"to a peer", "from a peer", "to the outside"}
_HOOK = "type filter hook {} priority 0;"
ROWS_OF_V6 = {
    "a server that lets come what it knows": (
        f"nft 'table inet f {{ chain i {{ {_HOOK.format('input')} policy drop; ct state invalid drop; "
        "ct state established,related accept; iif lo accept; tcp dport 22 accept; icmpv6 type echo-request accept; "
        "}; }'",
        f"Packets of neighbour discovery {_ALL}",
        _BEYOND,
    ),
    "no ICMPv6": (
        "ip6tables-legacy -A INPUT -p icmpv6 -j DROP",
        f"Packets of neighbour discovery {_ALL}",
        _BEYOND,
    ),
    "no ICMPv6, by iptables-nft": (
        "ip6tables-nft -P INPUT DROP; ip6tables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; "
        "ip6tables-nft -A INPUT -p icmpv6 --icmpv6-type 133/0 -j ACCEPT; "
        "ip6tables-nft -A INPUT -i cni0 -m hl --hl-eq 255 -j ACCEPT",
        "Packets of neighbour discovery between this host and fd00:99::1, fd00:99::12 are",
        _BEYOND,
    ),
    "what leaves": (
        f"nft 'table ip6 f {{ chain o {{ {_HOOK.format('output')} policy drop; "
        "ct state established,related accept; ct state new accept; }; }'",
        f"Packets of neighbour discovery {_ALL}",
        _BEYOND,
    ),
    "questions of other hosts": (
        f"nft 'table ip6 f {{ chain i {{ {_HOOK.format('input')} iifname eth0 icmpv6 type nd-neighbor-solicit drop; "
        "}; }'",
        "Neighbour solicitations between this host and fd00:99::1, fd00:99::12 are",
        _BEYOND,
    ),
    "answers of a router": (
        "ip6tables-nft -A INPUT -s fd00:99::1 -p icmpv6 --icmpv6-type neighbour-advertisement -j DROP",
        "Neighbour advertisements between this host and fd00:99::1 are",
        {"to the outside"},
    ),
    "the addresses of links alone": (
        f"nft 'table ip6 f {{ chain i {{ {_HOOK.format('input')} meta l4proto ipv6-icmp ip6 saddr fe80::/10 accept; "
        "icmpv6 type { echo-request, echo-reply } accept; meta l4proto ipv6-icmp drop; }; }'",
        f"Packets of neighbour discovery {_ALL}",
        _BEYOND,
    ),
    "groups, before routing": (
        "nft 'table inet f { chain p { type filter hook prerouting priority mangle; "
        "fib daddr type multicast drop; }; }'",
        f"Neighbour solicitations {_ALL}",
        _BEYOND,
    ),
    "between pods": (
        f"nft 'table bridge f {{ chain c {{ {_HOOK.format('forward')} policy drop; ether type {{ ip, arp }} accept; "
        "tcp dport 1-65535 accept; icmpv6 type { echo-request, echo-reply } accept; }; }'",
        "Packets of neighbour discovery between pods of this node are",
        {"between pods"},
    ),
    "a pod's port": (
        'nft \'table netdev f { chain c { type filter hook ingress device "veth3" priority 0; '
        "icmpv6 type nd-neighbor-advert drop; }; }'",
        "Neighbour advertisements between this host and its pods are",
        {"between pods", "from a peer"},
    ),
    "what a bridge gives to pods": (
        f"nft 'table bridge f {{ chain c {{ {_HOOK.format('output')} meta pkttype multicast drop; "
        "ether type ip6 ip6 daddr ff02::/16 drop; }; }'",
        "Neighbour solicitations between this host and its pods are",
        {"from a peer"},
    ),
    "a card": (
        'nft \'table netdev f { chain c { type filter hook egress device "eth0" priority 0; '
        "icmpv6 type 133-137 drop; }; }'",
        "Packets of neighbour discovery between this host and fd00:99::1, fd00:99::12 are",
        _BEYOND,
    ),
    "between pods, where a bridge asks the rules of IP": (
        "sysctl -qw net.bridge.bridge-nf-call-ip6tables=1; ip6tables-legacy -A FORWARD -i cni0 -o cni0 -p icmpv6 "
        "--icmpv6-type neighbour-advertisement -j DROP",
        "Neighbour advertisements between pods of this node are",
        {"between pods"},
    ),
}
HARMLESS = {
    "types that nobody needs": "ip6tables-legacy -A INPUT -p icmpv6 --icmpv6-type redirect -j DROP; "
    "ip6tables-legacy -A INPUT -p icmpv6 --icmpv6-type router-solicitation -j DROP",
    "what has come from afar": "nft 'table ip6 f { chain i { type filter hook input priority 0; "
    "icmpv6 type { 133-137 } ip6 hoplimit != 255 drop; ct state invalid drop; ct state untracked accept; "
    "meta l4proto ipv6-icmp drop; }; }'",
    "another interface": "ip6tables-nft -A INPUT -i docker0 -p icmpv6 -j DROP",
    "what is forwarded": "ip6tables-legacy -A FORWARD -p icmpv6 --icmpv6-type neighbour-solicitation -j DROP",
    "a server that knows what it needs": "nft 'table inet f { chain i { type filter hook input priority 0; policy "
    "drop; ct state established,related accept; iif lo accept; icmpv6 type { nd-neighbor-solicit, "
    "nd-neighbor-advert, echo-request } accept; meta l4proto icmp accept; }; }'",
}


@pytest.mark.parametrize("row", ROWS)
def test_packets_of_arp_that_are_dropped_are_named_and_pass_after_the_cure(row: str, node: Node) -> None:
    act, said, lost = ROWS[row]
    _judged(node, 4, f"nft '{act}'", said, lost)


@pytest.mark.parametrize("row", ROWS_OF_V6)
def test_neighbour_discovery_that_is_dropped_is_named_and_passes_after_the_cure(row: str, node: Node) -> None:
    if "bridge-nf" in ROWS_OF_V6[row][0] and not Path("/proc/sys/net/bridge").exists():
        pytest.skip("no kernel module br_netfilter")
    _judged(node, 6, *ROWS_OF_V6[row])


def _judged(node: Node, version: int, act: str, said: str, lost: set[str]) -> None:
    assert not node.lost(version)
    assert not node.found()
    try:
        node.host.run("sh", "-ec", act)
        assert node.lost(version) == lost
        found = node.found()
        assert [each.check for each in found] == ["firewall-arp" if version == 4 else "firewall-nd"], found
        assert (found[0].is_broken, found[0].problem.startswith(said)) == (True, True), found
        node.host.run("sh", "-ec", found[0].cure)
        assert not node.lost(version)
        assert not node.found()
    finally:
        node.restore()


@pytest.mark.parametrize("row", HARMLESS)
def test_neighbour_discovery_that_passes_is_no_finding(row: str, node: Node) -> None:
    try:
        node.host.run("sh", "-ec", HARMLESS[row])
        assert not node.lost(6)
        assert not node.found()
    finally:
        node.restore()


def test_an_address_whose_mac_a_program_has_set_needs_no_arp(node: Node) -> None:
    for address in ("10.99.0.1", "10.99.0.12"):
        node.host.run("sh", "-ec", f"ip neigh replace {address} lladdr {_mac(node.peer)} dev eth0 nud permanent")
    try:
        node.peer.ip(*f"neigh replace 10.99.0.11 lladdr {_mac(node.host.netns)} dev eth0 nud permanent".split())
        node.host.run("nft", 'table arp f { chain c { type filter hook input priority 0; iifname "eth0" drop; }; }')
        assert not node.lost()
        assert not node.found()
    finally:
        node.restore()
        node.host.run("ip", "neigh", "flush", "nud", "permanent", "dev", "eth0")
        node.peer.ip("neigh", "flush", "nud", "permanent", "dev", "eth0")


def _mac(where: NetworkNamespace) -> str:
    return where.ip("-br", "link", "show", "eth0").split()[2]
