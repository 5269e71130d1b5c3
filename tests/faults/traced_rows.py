"""What somebody may do to one of two nodes so that packets between their pods are lost, and where `trace` says so."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TracedFault:
    """In the texts the names of `traced_pair.words` stand in braces."""

    on: str
    """The node on which it is typed."""
    act: str
    undo: str
    kind: str
    """Of the first step that is broken."""
    says: str
    """A part of the reason."""
    found_on: str = ""
    """The node of that step; empty: where it was typed."""
    version: int = 4
    is_back: bool = False
    """Only the return path is broken."""


_NFT: Final = (
    "nft add table inet x; nft add chain inet x c '{{ type filter hook {hook} priority 0; }}'; nft add rule inet x c "
)


def _nft(hook: str, rule: str) -> str:
    return _NFT.replace("{hook}", hook) + rule


FAULTS: Final = {
    "IPsec policy about this pod": TracedFault(
        "n1",
        "ip xfrm policy add dir fwd src 10.5.27.2 dst {n2} action block",
        "ip xfrm policy del dir fwd src 10.5.27.2 dst {n2}",
        "ipsec",
        "The IPsec policy `dir fwd src 10.5.27.2/32 dst {n2}` blocks these packets.",
    ),
    "IPsec policy of the other node": TracedFault(
        "n2",
        "ip xfrm policy add dir out src 0.0.0.0/0 dst {n2} action block",
        "ip xfrm policy del dir out src 0.0.0.0/0 dst {n2}",
        "ipsec",
        "The IPsec policy `dir out src 0.0.0.0/0 dst {n2}` blocks these packets.",
    ),
    "IPsec policy about answers": TracedFault(
        "n1",
        "ip xfrm policy add dir fwd src {n2} dst 10.5.27.2 action block",
        "ip xfrm policy del dir fwd src {n2} dst 10.5.27.2",
        "ipsec",
        "The IPsec policy `dir fwd src {n2} dst 10.5.27.2/32` blocks these packets.",
        is_back=True,
    ),
    "route replaced": TracedFault(
        "n1",
        "ip route replace {n2} dev eth0",
        "ip route replace {n2} via {n2_vtep} dev flannel.1 onlink",
        "route",
        "The route `{n2} dev eth0 scope link` takes these packets.",
    ),
    "half of the subnet elsewhere": TracedFault(
        "n1",
        "ip route add 10.5.53.0/25 via 10.99.0.77",
        "ip route del 10.5.53.0/25",
        "route",
        "The route `10.5.53.0/25 via 10.99.0.77 dev eth0` takes these packets.",
    ),
    "blackhole rule": TracedFault(
        "n1",
        "ip rule add priority 100 to {n2} blackhole",
        "ip rule del priority 100",
        "route",
        "The rule `100: from all to {n2} blackhole` drops these packets.",
    ),
    "blackhole rule of IPv6": TracedFault(
        "n1",
        "ip -6 rule add priority 100 to {n2_6} blackhole",
        "ip -6 rule del priority 100",
        "route",
        "The rule `100: from all to {n2_6} blackhole` drops these packets.",
        version=6,
    ),
    "neighbour gone": TracedFault(
        "n1",
        "ip neigh del {n2_vtep} dev flannel.1",
        "ip neigh replace {n2_vtep} lladdr {n2_mac} dev flannel.1 nud permanent",
        "neighbour",
        "It is missing.",
    ),
    "forwarding entry to another host": TracedFault(
        "n1",
        "bridge fdb replace {n2_mac} dev flannel.1 dst 10.99.0.77 self permanent",
        "bridge fdb replace {n2_mac} dev flannel.1 dst 10.99.0.12 self permanent",
        "fdb",
        "It should be `{n2_mac} dev flannel.1 dst 10.99.0.12 self permanent`.",
    ),
    "dropped where it is forwarded": TracedFault(
        "n1",
        _nft("forward", 'oifname "flannel.1" drop'),
        "nft delete table inet x",
        "firewall",
        "A rule of another program drops",
    ),
    "underlay swallowed": TracedFault(
        "n1",
        "ip route add blackhole 10.99.0.12",
        "ip route del blackhole 10.99.0.12",
        "underlay route",
        "The route `blackhole 10.99.0.12` takes these packets.",
    ),
    "wrong MAC in the underlay": TracedFault(
        "n1",
        "ip neigh replace 10.99.0.12 lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
        "ip neigh del 10.99.0.12 dev eth0",
        "underlay neighbour",
        "The underlay MAC of n2 is ",
    ),
    "the peer's device has another MAC": TracedFault(
        "n2",
        "ip link set flannel.1 address 02:00:00:00:00:98",
        "ip link set flannel.1 address {n2_mac}; "
        "ip neigh replace {n1_vtep} lladdr {n1_mac} dev flannel.1 nud permanent",
        "neighbour",
        "The device MAC of n2 is 02:00:00:00:00:98, and not {n2_mac}.",
        found_on="n1",
    ),
    "port blocked": TracedFault(
        "n2",
        _nft("input", "udp dport 8472 drop"),
        "nft delete table inet x",
        "firewall",
        "Packets between the nodes (UDP port 8472)",
    ),
    "policy that drops": TracedFault(
        "n2",
        "nft add table ip x; nft add chain ip x c '{{ type filter hook input priority 0; policy drop; }}'",
        "nft delete table ip x",
        "firewall",
        "Packets between the nodes (UDP port 8472)",
    ),
    "own address gone": TracedFault(
        "n2",
        "ip route del table local local 10.99.0.12",
        "ip route add local 10.99.0.12 dev eth0 table local proto kernel scope host src 10.99.0.12",
        "underlay address",
        "The local route of 10.99.0.12 is missing",
    ),
    "device down": TracedFault(
        "n2",
        "ip link set flannel.1 down",
        "ip link set flannel.1 up; ip route replace {n1} via {n1_vtep} dev flannel.1 onlink; "
        "ip neigh replace {n1_vtep} lladdr {n1_mac} dev flannel.1 nud permanent",
        "device",
        "The device flannel.1 is down.",
    ),
    "forwarding off": TracedFault(
        "n2",
        "sysctl -qw net/ipv4/conf/flannel.1/forwarding=0",
        "sysctl -qw net/ipv4/conf/flannel.1/forwarding=1",
        "forwarding",
        "This host does not forward IPv4 packets that come in by flannel.1.",
    ),
    "forwarding of IPv6 off": TracedFault(
        "n2",
        "sysctl -qw net.ipv6.conf.all.forwarding=0",
        "sysctl -qw net.ipv6.conf.all.forwarding=1",
        "forwarding",
        "This host does not forward IPv6 packets",
        version=6,
    ),
    "reverse path filter": TracedFault(
        "n2",
        "sysctl -qw net/ipv4/conf/flannel.1/rp_filter=1; ip route replace {n1} dev eth0",
        "sysctl -qw net/ipv4/conf/flannel.1/rp_filter=0; ip route replace {n1} via {n1_vtep} dev flannel.1 onlink",
        "route",
        "The reverse path filter of flannel.1 drops these packets",
    ),
    "bridge without an address": TracedFault(
        "n2",
        "ip addr del {n2_gateway} dev cni0",
        "ip addr add {n2_gateway} dev cni0",
        "route",
        "No interface of this host has an address in {n2}",
    ),
    "the pod's address on the other node": TracedFault(
        "n2",
        "ip addr add 10.5.27.2/32 dev lo",
        "ip addr del 10.5.27.2/32 dev lo",
        "route",
        "lo of this host has 10.5.27.2/32.",
    ),
    "the node's address on the other node": TracedFault(
        "n2",
        "ip addr add 10.99.0.11/32 dev lo",
        "ip addr del 10.99.0.11/32 dev lo",
        "underlay address",
        "lo of this host has 10.99.0.11/32.",
    ),
    "ip rule about the port of the tunnel": TracedFault(
        "n1",
        "ip rule add priority 100 to 10.99.0.12 ipproto udp dport 8472 blackhole",
        "ip rule del priority 100",
        "ip rule",
        "The rule `100: from all to 10.99.0.12 ipproto udp dport 8472 blackhole` drops these packets.",
    ),
    "ip rule about a protocol": TracedFault(
        "n2",
        "ip rule add priority 100 to 10.5.53.2 iif flannel.1 ipproto icmp prohibit",
        "ip rule del priority 100",
        "route",
        "The rule `100: from all to 10.5.53.2 iif flannel.1 ipproto icmp prohibit` drops these packets.",
    ),
    "the way back diverted": TracedFault(
        "n2",
        "ip rule add priority 100 to {n1} prohibit",
        "ip rule del priority 100",
        "route",
        "The rule `100: from all to {n1} prohibit` drops these packets.",
        is_back=True,
    ),
}
HARMLESS: Final = {
    "IPsec policy about another pod": (
        "n1",
        "ip xfrm policy add dir fwd src 10.5.27.9 dst 0.0.0.0/0 action block",
        "ip xfrm policy del dir fwd src 10.5.27.9 dst 0.0.0.0/0",
    ),
    "dropped on another interface": (
        "n2",
        _nft("input", 'iifname "eth7" udp dport 8472 drop'),
        "nft delete table inet x",
    ),
    "dropped on another port": ("n2", _nft("input", "udp dport 8473 drop"), "nft delete table inet x"),
    "ip rule about another port": (
        "n1",
        "ip rule add priority 100 to 10.99.0.12 ipproto udp dport 8473 blackhole",
        "ip rule del priority 100",
    ),
    "loose reverse path filter": (
        "n2",
        "sysctl -qw net/ipv4/conf/flannel.1/rp_filter=2",
        "sysctl -qw net/ipv4/conf/flannel.1/rp_filter=0",
    ),
}


@dataclass(frozen=True, slots=True)
class FaultOfAPair:
    """What loses packets between two addresses alone, so that no check of a whole node or peer sees it."""

    on: str
    act: str
    says: str
    """A part of the cause that the trace tells."""
    cure: str
    """The command that is told, or its beginning."""
    is_of_pod: bool = False
    """It is between n1 and the pod of n2: n2 itself answers, so that doctor has nothing to say."""
    version: int = 4
    undo: str = ""
    """What ends it; empty: the cure."""
    is_found: bool = False
    """A finding of masq names it too, because rules that name a single pod or node are asked about."""


_RULE: Final = "The rule `100: from all to {to} blackhole` drops these packets."
_OF_RULE: Final = "ip rule add priority 99 from all to {to} lookup main"
_WITHOUT_RULES: Final = "ip rule del priority 99; ip rule del priority 100"

FAULTS_OF_PAIRS: Final = {
    "ip rule about the address of a node": FaultOfAPair(
        "n2",
        "ip rule add priority 100 to {n1_vtep} blackhole",
        _RULE.replace("{to}", "{n1_vtep}"),
        _OF_RULE.replace("{to}", "{n1_vtep}"),
        undo=_WITHOUT_RULES,
    ),
    "ip rule about an IPv6 address of a node": FaultOfAPair(
        "n2",
        "ip -6 rule add priority 100 to {n1_6_vtep} blackhole",
        _RULE.replace("{to}", "{n1_6_vtep}"),
        _OF_RULE.replace("ip rule", "ip -6 rule").replace("{to}", "{n1_6_vtep}"),
        version=6,
        undo=_WITHOUT_RULES.replace("ip rule", "ip -6 rule"),
    ),
    "ip rule that looks an address up elsewhere": FaultOfAPair(
        "n1",
        "ip route add unreachable default table 100; ip rule add priority 100 to {n2_vtep} lookup 100",
        "The rule `100: from all to {n2_vtep} lookup 100` sends these packets by the route",
        "ip rule add to 10.5.0.0/16 priority 99 table main",
        undo="ip rule del priority 99; ip rule del priority 100; ip route flush table 100",
    ),
    "nftables, to the address of a node": FaultOfAPair(
        "n1",
        _nft("output", "ip daddr {n2_vtep} drop"),
        "`ip daddr {n2_vtep}/32 drop`, chain c of table inet x (nft)",
        "nft insert rule inet x c handle ",
        undo="nft delete table inet x",
        is_found=True,
    ),
    "nftables, from the address of a node": FaultOfAPair(
        "n2",
        _nft("input", "ip saddr {n1_vtep} drop"),
        "`ip saddr {n1_vtep}/32 drop`, chain c of table inet x (nft)",
        "nft insert rule inet x c handle ",
        undo="nft delete table inet x",
        is_found=True,
    ),
    "ip rule about a pod": FaultOfAPair(
        "n1",
        "ip rule add priority 100 to {n2_pod} blackhole",
        _RULE.replace("{to}", "{n2_pod}"),
        _OF_RULE.replace("{to}", "{n2_pod}"),
        is_of_pod=True,
        undo=_WITHOUT_RULES,
    ),
    "ip rule about a protocol of a pod": FaultOfAPair(
        "n1",
        "ip rule add priority 100 to {n2_pod} ipproto icmp blackhole",
        "The rule `100: from all to {n2_pod} ipproto icmp blackhole` drops these packets.",
        "ip rule add priority 99 from all to {n2_pod} ipproto icmp lookup main",
        is_of_pod=True,
        undo=_WITHOUT_RULES,
    ),
    "nftables, at the device of the overlay": FaultOfAPair(
        "n2",
        "nft add table netdev x; "
        "nft add chain netdev x c '{{ type filter hook ingress device flannel.1 priority 0; }}'; "
        "nft add rule netdev x c ip daddr {n2_pod} drop",
        "`ip daddr {n2_pod}/32 drop`, chain c of table netdev x (nft)",
        "nft insert rule netdev x c handle ",
        is_of_pod=True,
        undo="nft delete table netdev x",
        is_found=True,
    ),
}
