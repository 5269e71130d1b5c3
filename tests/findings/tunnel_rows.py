"""What other programs' firewalls do to the tunnels of the other backends, one row each: tried without the tunnel."""

from typing import Final

from tests.findings.fault import SilentFault

_LEGACY: Final = "A rule of another program drops them: `{rule}`, chain INPUT of table filter (iptables-legacy)."


def _tunnel(
    backend: str,
    packets: str,
    act: str,
    rule: str,
    cure: str = "",
    *,
    accept: str = "",
    verb: str = "are",
    what: str = "",
) -> SilentFault:
    return SilentFault(
        act,
        "firewall-tunnel",
        rule if cure else _LEGACY.format(rule=rule),
        cure or f"iptables-legacy -t filter -I INPUT 1 -s 10.99.0.12 {accept} -j ACCEPT",
        backend=backend,
        versions=(4,),
        problem=f"Packets between the nodes ({packets}) {verb} dropped.",
        evidence="*: *",
        service="masq",
        what=f"{backend}: {what or f'`{act}`'}",
    )


TUNNEL_FAULTS: Final = {
    "ipip-dropped": _tunnel(
        "ipip", "IP protocol 4", "iptables-legacy -A INPUT -p ipencap -j DROP", "-A INPUT -p * -j DROP", accept="-p 4"
    ),
    "wireguard-dropped": _tunnel(
        "wireguard",
        "UDP port 51820",
        "iptables-legacy -A INPUT -p udp --dport 51820 -j DROP",
        "-A INPUT -p udp --dport 51820 -j DROP",
        accept="-p udp --dport 51820",
    ),
    "udp-dropped": _tunnel(
        "udp",
        "UDP port 8285",
        "iptables-legacy -A INPUT -p udp --dport 8000:9000 -j DROP",
        "-A INPUT -p udp --dport 8000:9000 -j DROP",
        accept="-p udp --dport 8285",
    ),
    "esp-dropped": _tunnel(
        "ipsec", "IP protocol 50", "iptables-legacy -A INPUT -p esp -j DROP", "-A INPUT -p * -j DROP", accept="-p 50"
    ),
    "ike-dropped": _tunnel(
        "ipsec",
        "UDP port 500",
        "iptables-legacy -A INPUT -p udp --dport 500 -j DROP",
        "-A INPUT -p udp --dport 500 -j DROP",
        accept="-p udp --dport 500",
    ),
    "ipsec-dropped-by-the-policy": _tunnel(
        "ipsec",
        "IP protocol 50, UDP port 500",
        "iptables-legacy -P INPUT DROP",
        "The policy of chain INPUT of table filter (iptables-legacy) is DROP, and no rule there accepts them.",
        " && ".join(
            f"iptables-legacy -t filter -A INPUT -s 10.99.0.12 {accept} -j ACCEPT"
            for accept in ("-p 50", "-p udp --dport 500")
        ),
    ),
    "ipip-rejected-by-firewalld": _tunnel(
        "ipip",
        "IP protocol 4",
        "nft -f {firewalld}",
        "A rule of firewalld may drop them: `reject`, chain filter_IN_public of table inet firewalld (nft).",
        'firewall-cmd --permanent --zone=public \'--add-rich-rule=rule family="ipv4" source address="10.99.0.12" '
        'protocol value="4" accept\' && firewall-cmd --reload',
        verb="may be",
        what="firewalld, the underlay in its zone `public`",
    ),
}
