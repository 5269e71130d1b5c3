"""What other programs' firewalls do to packets between the nodes and of pods; masq's rules are in nftables."""

from typing import Final

from tests.findings.fault import SilentFault

_SAYS = {
    "firewall-tunnel": ("Packets between the nodes (UDP port 8472) are dropped.", "*: *"),
    "firewall-pods": ("Packets of pods are dropped.", "*: *"),
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
) -> SilentFault:
    problem, asked = _SAYS[check]
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
        problem=problem,
        evidence=asked,
        service="masq",
    )


FIREWALL_FAULTS: Final = {
    "tunnel-dropped-in-input": _firewall(
        "{iptables}-legacy -A INPUT -p udp --dport 8472 -j DROP",
        "firewall-tunnel",
        f"{_DROPS}`-A INPUT -p udp --dport 8472 -j DROP`, chain INPUT of table filter ({{iptables}}-legacy).",
        "{iptables}-legacy -t filter -D INPUT 1",
        versions=(4, 6),
    ),
    "tunnel-rejected-by-iptables-nft": _firewall(
        "{iptables}-nft -A INPUT -p udp --dport 8472 -j REJECT",
        "firewall-tunnel",
        f"{_DROPS}`*8472*`, chain INPUT of table filter ({{iptables}}-nft).",
        "nft delete rule {nft} filter INPUT handle *",
        versions=(4, 6),
    ),
    "tunnel-dropped-by-nftables": _firewall(
        "nft 'add table inet own; add chain inet own c {{ type filter hook input priority 5; }}; "
        "add rule inet own c udp dport 8472 drop'",
        "firewall-tunnel",
        f"{_DROPS}`*th dport 8472 drop`, chain c of table inet own (nft).",
        "nft delete rule inet own c handle *",
        and_then="nft delete table inet own",
    ),
    "tunnel-dropped-in-a-chain": _firewall(
        "iptables-legacy -N GUARD && iptables-legacy -A GUARD -p udp -j DROP && iptables-legacy -A INPUT -j GUARD",
        "firewall-tunnel",
        f"{_DROPS}`-A GUARD -p udp -j DROP`, chain GUARD of table filter (iptables-legacy).",
        "iptables-legacy -t filter -D GUARD 1",
        and_then="iptables-legacy -F INPUT && iptables-legacy -X GUARD",
    ),
    "tunnel-dropped-by-a-policy": _firewall(
        "iptables-legacy -A INPUT -i lo -j ACCEPT && "
        "iptables-legacy -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT && "
        "iptables-legacy -P INPUT DROP",
        "firewall-tunnel",
        "The policy of chain INPUT of table filter (iptables-legacy) is DROP, and no rule there accepts them.",
        "iptables-legacy -t filter -I INPUT -p udp --dport 8472 -j ACCEPT",
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
        "nft insert rule inet own c udp dport 8472 accept",
        and_then="nft delete table inet own",
    ),
    "tunnel-dropped-by-a-set": _firewall(
        "nft 'add table inet own; add set inet own ports {{ type inet_service; flags interval; "
        "elements = {{ 4789, 8000-9000 }}; }}; add chain inet own c {{ type filter hook input priority 5; }}; "
        "add rule inet own c udp dport @ports drop'",
        "firewall-tunnel",
        f"{_DROPS}`*th dport {{{{ 4789, 8000-9000 }}}} drop`, chain c of table inet own (nft).",
        "nft delete rule inet own c handle *",
        and_then="nft delete table inet own",
    ),
    "tunnel-rejected-by-firewalld": _firewall(
        "nft -f {firewalld} && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip saddr 10.5.0.0/16 accept && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip6 saddr fd00:10:5::/48 accept",
        "firewall-tunnel",
        "firewalld's zone public rejects them: `reject`, chain filter_IN_public of table inet firewalld.",
        "firewall-cmd --permanent --zone=public --add-port=8472/udp && firewall-cmd --reload",
        undo="nft add rule inet firewalld filter_IN_public_allow udp dport 8472 accept",
        and_then="nft delete table inet firewalld",
        what="firewalld, the underlay in its zone `public`, the network of pods in its zone `trusted`",
    ),
    "tunnel-dropped-in-raw": _firewall(
        "iptables-legacy -t raw -A PREROUTING -p udp --dport 8472 -j DROP",
        "firewall-tunnel",
        f"{_DROPS}`-A PREROUTING -p udp --dport 8472 -j DROP`, chain PREROUTING of table raw (iptables-legacy).",
        "iptables-legacy -t raw -D PREROUTING 1",
    ),
    "pods-dropped-in-mangle": _firewall(
        "iptables-legacy -t mangle -A PREROUTING -s {network} -j DROP",
        "firewall-pods",
        f"{_DROPS}`-A PREROUTING -s {{network}} -j DROP`, chain PREROUTING of table mangle (iptables-legacy).",
        "iptables-legacy -t mangle -D PREROUTING 1",
    ),
    "pods-dropped-by-a-policy": _firewall(
        "iptables-legacy -P FORWARD DROP",
        "firewall-pods",
        "The policy of chain FORWARD of table filter (iptables-legacy) is DROP, and no rule there accepts them.",
        "iptables-legacy -P FORWARD ACCEPT",
    ),
    "pods-dropped-by-a-policy-of-iptables-nft": _firewall(
        "iptables-nft -P FORWARD DROP",
        "firewall-pods",
        "The policy of chain FORWARD of table filter (iptables-nft) is drop, and no rule there accepts them.",
        "nft chain ip filter FORWARD '{{ policy accept; }}'",
    ),
    "pods-dropped-by-nftables": _firewall(
        "nft 'add table inet own; add chain inet own c {{ type filter hook forward priority 5; }}; "
        "add rule inet own c ip daddr {network} drop'",
        "firewall-pods",
        f"{_DROPS}`ip daddr {{network}} drop`, chain c of table inet own (nft).",
        "nft delete rule inet own c handle *",
        and_then="nft delete table inet own",
    ),
    "pods-rejected-by-firewalld": _firewall(
        "nft -f {firewalld} && nft add rule inet firewalld filter_IN_public_allow udp dport 8472 accept",
        "firewall-pods",
        "firewalld's zone public rejects them: `reject`, chain filter_FWD_public of table inet firewalld.",
        "firewall-cmd --permanent --zone=trusted --add-source=10.5.0.0/16 --add-source=fd00:10:5::/48 "
        "&& firewall-cmd --reload",
        undo="nft insert rule inet firewalld filter_FORWARD_ZONES ip saddr 10.5.0.0/16 accept && "
        "nft insert rule inet firewalld filter_FORWARD_ZONES ip6 saddr fd00:10:5::/48 accept",
        and_then="nft delete table inet firewalld",
        what="firewalld, with the port 8472/udp open",
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
