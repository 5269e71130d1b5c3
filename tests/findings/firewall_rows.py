"""What other programs' firewalls do to packets between the nodes and of pods; masq's rules are in nftables."""

from typing import Final

from tests.findings.fault import SilentFault

_SAYS = {
    "firewall-tunnel": ("Packets between the nodes (UDP port 8472) are dropped.", "*: *"),
    "firewall-pods": ("Packets of pods are dropped.", "*: *"),
    "firewall-arp": (
        "Packets of ARP between this host and its pods are dropped: without ARP no packet finds its way.",
        "nft list chain bridge own c: *",
    ),
    "firewall-nd": (
        "Packets of neighbour discovery between this host and its pods, and between this host and fd00:99::1, "
        "fd00:99::12 are dropped: without neighbour discovery no packet of IPv6 finds its way.",
        "ip6tables-legacy -t filter -S INPUT: *",
    ),
    "bridge-calls": (
        "Pods of one node do not reach each other through a service's address.",
        "net.bridge.bridge-nf-call-iptables = 0, and iptables has a chain KUBE-SERVICES",
    ),
}
"""By check: what does not work, and the evidence."""
_DROPS = "A rule of another program drops them: "


def _firewall(
    act: str,
    check: str,
    cause: str,
    cure: str,
    *,
    and_then: str = "true",
    versions: tuple[int, ...] = (4,),
    undo: str = "",
    what: str = "",
    asked: str = "",
    problem: str = "",
) -> SilentFault:
    usual, evidence = _SAYS[check]
    cure += "  # *" if cure.startswith(("ip", "nft", "{ip")) else ""
    return SilentFault(
        act,
        check,
        cause,
        cure,
        versions=versions,
        and_then=and_then,
        says="own part" if check == "bridge-calls" else "node",
        is_answered=check == "bridge-calls",
        undo=undo,
        what=what,
        problem=problem or usual,
        evidence=asked or evidence,
        service="masq",
    )


_PEER: Final = "-s {public} -p udp --dport 8472 -j ACCEPT"
_NFT_PEER: Final = "ip saddr {public} udp dport 8472 accept"


def _before(program: str, chain: str, number: int, match: str = _PEER, table: str = "filter") -> str:
    """Accepted in front of the rule with this number, which stays."""
    return f"{program} -t {table} -I {chain} {number} {match}"


_IN: Final = "-s {network} -d {subnet} -i {device} -j ACCEPT"
_OUT: Final = "-s {subnet} -i cni0 -j ACCEPT"
_FORWARDED: Final = " -m addrtype --dst-type UNICAST"
_ANSWERS: Final = "-d {subnet} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
_TO_HOST: Final = (
    "-s {subnet} -d * -i cni0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-s {network} -d * -i {device} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
)

FIREWALL_FAULTS: Final = {
    "tunnel-dropped-in-input": _firewall(
        "{iptables}-legacy -A INPUT -p udp --dport 8472 -j DROP",
        "firewall-tunnel",
        f"{_DROPS}`-A INPUT -p udp --dport 8472 -j DROP`, chain INPUT of table filter ({{iptables}}-legacy).",
        _before("{iptables}-legacy", "INPUT", 1),
        versions=(4, 6),
        and_then="{iptables}-legacy -F INPUT",
    ),
    "tunnel-rejected-by-iptables-nft": _firewall(
        "{iptables}-nft -A INPUT -p udp --dport 8472 -j REJECT",
        "firewall-tunnel",
        f"{_DROPS}`*8472*`, chain INPUT of table filter ({{iptables}}-nft).",
        _before("{iptables}-nft", "INPUT", 1),
        versions=(4, 6),
        and_then="{iptables}-nft -F INPUT",
    ),
    "tunnel-dropped-by-nftables": _firewall(
        "nft 'add table inet own; add chain inet own c {{ type filter hook input priority 5; }}; "
        "add rule inet own c udp dport 8472 drop'",
        "firewall-tunnel",
        f"{_DROPS}`*th dport 8472 drop`, chain c of table inet own (nft).",
        f"nft insert rule inet own c handle * {_NFT_PEER} && nft insert rule inet own c handle * "
        "ip6 saddr fd00:99::12 udp dport 8472 accept",
        and_then="nft delete table inet own",
    ),
    "tunnel-dropped-in-a-chain": _firewall(
        "iptables-legacy -N GUARD && iptables-legacy -A GUARD -p udp -j DROP && iptables-legacy -A INPUT -j GUARD",
        "firewall-tunnel",
        f"{_DROPS}`-A GUARD -p udp -j DROP`, chain GUARD of table filter (iptables-legacy).",
        " && ".join(_before("iptables-legacy", "GUARD", 1, match) for match in (_PEER, *_TO_HOST)),
        problem="Packets between the nodes (UDP port 8472), and between this host and pods, are dropped.",
        and_then="iptables-legacy -F INPUT && iptables-legacy -F GUARD && iptables-legacy -X GUARD",
    ),
    "tunnel-dropped-by-a-policy": _firewall(
        "iptables-legacy -A INPUT -i lo -j ACCEPT && "
        "iptables-legacy -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT && "
        "iptables-legacy -P INPUT DROP",
        "firewall-tunnel",
        "The policy of chain INPUT of table filter (iptables-legacy) is DROP, and no rule there accepts them.",
        f"iptables-legacy -t filter -A INPUT {_PEER}",
        and_then="iptables-legacy -P INPUT ACCEPT && iptables-legacy -F INPUT",
    ),
    "tunnel-dropped-by-a-policy-of-nftables": _firewall(
        "nft 'add table inet own; add chain inet own c {{ type filter hook input priority 5; policy drop; }}; "
        "add rule inet own c iif lo accept; "
        "add rule inet own c ct state vmap {{ established : accept, related : accept, invalid : drop }}; "
        "add rule inet own c meta l4proto {{ icmp, ipv6-icmp }} accept; "
        "add rule inet own c tcp dport {{ 22, 80 }} accept'",
        "firewall-tunnel",
        "The policy of chain c of table inet own (nft) is drop, and no rule there accepts them.",
        f"nft add rule inet own c {_NFT_PEER} && nft add rule inet own c ip6 saddr fd00:99::12 udp dport 8472 accept",
        and_then="nft delete table inet own",
    ),
    "tunnel-dropped-by-a-set": _firewall(
        "nft 'add table inet own; add set inet own ports {{ type inet_service; flags interval; "
        "elements = {{ 4789, 8000-9000 }}; }}; add chain inet own c {{ type filter hook input priority 5; }}; "
        "add rule inet own c udp dport @ports drop'",
        "firewall-tunnel",
        f"{_DROPS}`*th dport {{{{ 4789, 8000-9000 }}}} drop`, chain c of table inet own (nft).",
        f"nft insert rule inet own c handle * {_NFT_PEER} && nft insert rule inet own c handle * "
        "ip6 saddr fd00:99::12 udp dport 8472 accept",
        and_then="nft delete table inet own",
    ),
    "tunnel-rejected-by-firewalld": _firewall(
        "nft -f {firewalld} && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip saddr 10.5.0.0/16 accept && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip6 saddr fd00:10:5::/48 accept && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip daddr 10.5.0.0/16 accept && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip6 daddr fd00:10:5::/48 accept",
        "firewall-tunnel",
        "A rule of firewalld drops them: `reject`, chain filter_IN_public of table inet firewalld (nft).",
        'firewall-cmd --permanent --zone=public \'--add-rich-rule=rule family="ipv4" '
        'source address="{public}" port port="8472" protocol="udp" accept\' '
        '\'--add-rich-rule=rule family="ipv6" source address="fd00:99::12" port port="8472" '
        'protocol="udp" accept\' && firewall-cmd --reload',
        undo="nft add rule inet firewalld filter_IN_public_allow ip saddr {public} udp dport 8472 accept && "
        "nft add rule inet firewalld filter_IN_public_allow ip6 saddr fd00:99::12 udp dport 8472 accept",
        and_then="nft delete table inet firewalld",
        what="firewalld, the underlay in its zone `public`, the network of pods accepted",
    ),
    "tunnel-dropped-in-raw": _firewall(
        "iptables-legacy -t raw -A PREROUTING -p udp --dport 8472 -j DROP",
        "firewall-tunnel",
        f"{_DROPS}`-A PREROUTING -p udp --dport 8472 -j DROP`, chain PREROUTING of table raw (iptables-legacy).",
        _before("iptables-legacy", "PREROUTING", 1, table="raw"),
        and_then="iptables-legacy -t raw -F PREROUTING",
    ),
    "pods-dropped-in-mangle": _firewall(
        "iptables-legacy -t mangle -A PREROUTING -s {network} -j DROP",
        "firewall-pods",
        f"{_DROPS}`-A PREROUTING -s {{network}} -j DROP`, chain PREROUTING of table mangle (iptables-legacy).",
        " && ".join(
            _before("iptables-legacy", "PREROUTING", 1, match, "mangle")
            for match in (*(each.replace(" -j", f"{_FORWARDED} -j") for each in (_IN, _OUT)), *_TO_HOST)
        ),
        and_then="iptables-legacy -t mangle -F PREROUTING",
    ),
    "pods-dropped-by-a-policy": _firewall(
        "iptables-legacy -P FORWARD DROP",
        "firewall-pods",
        "The policy of chain FORWARD of table filter (iptables-legacy) is DROP, and no rule there accepts them.",
        " && ".join(f"iptables-legacy -t filter -A FORWARD {match}" for match in (_IN, _OUT, _ANSWERS)),
        and_then="iptables-legacy -P FORWARD ACCEPT && iptables-legacy -F FORWARD",
    ),
    "pods-dropped-by-a-policy-of-iptables-nft": _firewall(
        "iptables-nft -P FORWARD DROP",
        "firewall-pods",
        "The policy of chain FORWARD of table filter (iptables-nft) is drop, and no rule there accepts them.",
        " && ".join(f"iptables-nft -t filter -A FORWARD {match}" for match in (_IN, _OUT, _ANSWERS)),
        and_then="iptables-nft -P FORWARD ACCEPT && iptables-nft -F FORWARD",
    ),
    "pods-dropped-by-nftables": _firewall(
        "nft 'add table inet own; add chain inet own c {{ type filter hook forward priority 5; }}; "
        "add rule inet own c ip daddr {network} drop'",
        "firewall-pods",
        f"{_DROPS}`ip daddr {{network}} drop`, chain c of table inet own (nft).",
        "*",
        and_then="nft delete table inet own",
    ),
    "pods-rejected-by-firewalld": _firewall(
        "nft -f {firewalld} && nft add rule inet firewalld filter_IN_public_allow udp dport 8472 accept",
        "firewall-pods",
        "A rule of firewalld drops them: `reject`, chain filter_FWD_public of table inet firewalld (nft).",
        "*",
        undo="nft insert rule inet firewalld filter_FORWARD_ZONES ip saddr 10.5.0.0/16 accept && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip6 saddr fd00:10:5::/48 accept",
        and_then="nft delete table inet firewalld",
        what="firewalld, with the port 8472/udp open",
    ),
    "arp-dropped-at-the-bridge": _firewall(
        "nft 'add table bridge own; add chain bridge own c {{ type filter hook input priority 0; policy drop; }}; "
        "add rule bridge own c ether type {{ ip, ip6 }} accept' && ip neigh flush dev cni0",
        "firewall-arp",
        "The policy of chain c of table bridge own (nft) is drop, and no rule there accepts them.",
        "nft add rule bridge own c arp saddr ip {subnet} accept",
        and_then="nft delete table bridge own",
    ),
    "arp-dropped-by-arptables": _firewall(
        "arptables -A OUTPUT -o cni0 -j DROP && ip neigh flush dev cni0",
        "firewall-arp",
        f"{_DROPS}`oifname cni0 * drop`, chain OUTPUT of table arp filter (nft).",
        "nft insert rule arp filter OUTPUT handle * arp daddr ip {subnet} oifname cni0 accept",
        and_then="nft delete table arp filter",
        asked="nft list chain arp filter OUTPUT: *",
    ),
    "neighbour-discovery-dropped": _firewall(
        "ip6tables-legacy -A INPUT -p icmpv6 -j DROP && ip -6 neigh flush dev eth0 && ip -6 neigh flush dev cni0",
        "firewall-nd",
        f"{_DROPS}`-A INPUT -p ipv6-icmp -j DROP`, chain INPUT of table filter (ip6tables-legacy).",
        "*ip6tables-legacy -t filter -I INPUT 1 -s {subnet} -i cni0 -p icmpv6 --icmpv6-type 135 -j ACCEPT*",
        and_then="ip6tables-legacy -F INPUT",
        versions=(6,),
    ),
    "bridge-hides-packets": _firewall(
        "iptables-nft -N KUBE-SERVICES && sysctl -qw net.bridge.bridge-nf-call-iptables=0",
        "bridge-calls",
        "net.bridge.bridge-nf-call-iptables is 0.",
        "sysctl -w net.bridge.bridge-nf-call-iptables=1",
        and_then="iptables-nft -X KUBE-SERVICES",
        what="`sysctl -qw net.bridge.bridge-nf-call-iptables=0`, with a kube-proxy in iptables",
    ),
}
