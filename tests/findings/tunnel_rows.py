"""What other programs' firewalls do to the tunnels of the other backends, one row each: tried without the tunnel."""

from typing import Final

from tests.findings.fault import SilentFault

_LEGACY: Final = "A rule of another program drops them: `{rule}`, chain INPUT of table filter (iptables-legacy)."


def _tunnel(backend: str, packets: str, act: str, rule: str, cure: str = "") -> SilentFault:
    return SilentFault(
        act,
        "firewall-tunnel",
        rule if cure else _LEGACY.format(rule=rule),
        cure or "iptables-legacy -t filter -D INPUT 1",
        backend=backend,
        versions=(4,),
        problem=f"Packets between the nodes ({packets}) are dropped.",
        evidence="*: *",
        service="masq",
        what=f"{backend}: firewalld, the underlay in its zone `public`" if cure else f"{backend}: `{act}`",
    )


TUNNEL_FAULTS: Final = {
    "ipip-dropped": _tunnel(
        "ipip", "IP protocol 4", "iptables-legacy -A INPUT -p ipencap -j DROP", "-A INPUT -p * -j DROP"
    ),
    "wireguard-dropped": _tunnel(
        "wireguard",
        "UDP port 51820",
        "iptables-legacy -A INPUT -p udp --dport 51820 -j DROP",
        "-A INPUT -p udp --dport 51820 -j DROP",
    ),
    "udp-dropped": _tunnel(
        "udp",
        "UDP port 8285",
        "iptables-legacy -A INPUT -p udp --dport 8000:9000 -j DROP",
        "-A INPUT -p udp --dport 8000:9000 -j DROP",
    ),
    "esp-dropped": _tunnel(
        "ipsec", "IP protocol 50", "iptables-legacy -A INPUT -p esp -j DROP", "-A INPUT -p * -j DROP"
    ),
    "ike-dropped": _tunnel(
        "ipsec",
        "UDP port 500",
        "iptables-legacy -A INPUT -p udp --dport 500 -j DROP",
        "-A INPUT -p udp --dport 500 -j DROP",
    ),
    "ipip-rejected-by-firewalld": _tunnel(
        "ipip",
        "IP protocol 4",
        "nft -f {firewalld}",
        "firewalld's zone public rejects them: `reject`, chain filter_IN_public of table inet firewalld.",
        "firewall-cmd --permanent --zone=public --add-protocol=4 && firewall-cmd --reload",
    ),
}
