"""What somebody may do to a host so that packets are lost in silence, one row each, in each address family."""

from dataclasses import dataclass, field
from typing import Final

from tests.hosts.two_hosts import Row


@dataclass(frozen=True, slots=True)
class SilentFault:
    """In the texts the names of `words` stand in braces."""

    act: str
    """What is typed on n1."""
    check: str
    """Which check finds it."""
    cause: str
    """The end of what it says; a part of it."""
    cure: str
    """What is to be typed, as it stands."""
    says: str = "node"
    """`node`: it is not ready; `peer`: the peer counts as failed; `part`: neither; `own part`: of no peer."""
    is_far: bool = False
    """The peer is behind a gateway."""
    backend: str = "vxlan"
    versions: tuple[int, ...] = (4, 6)
    is_answered: bool = False
    """Pings of this pod are answered nevertheless."""
    is_told: bool = True
    """The kernel tells of it; else the next look finds it."""
    and_then: str = field(default="true")
    """What else has to be typed behind the cure, which is about one thing."""


FAULTS: Final = {
    "bridge-does-not-forward": SilentFault(
        "sysctl -qw net.ipv4.conf.cni0.forwarding=0",
        "forwarding-off",
        "net.ipv4.conf.cni0.forwarding is 0.",
        "sysctl -w net.ipv4.conf.cni0.forwarding=1",
        versions=(4,),
    ),
    "underlay-does-not-forward": SilentFault(
        "sysctl -qw net.ipv4.conf.eth0.forwarding=0",
        "forwarding-off",
        "net.ipv4.conf.eth0.forwarding is 0.",
        "sysctl -w net.ipv4.conf.eth0.forwarding=1",
        backend="host-gw",
        versions=(4,),
    ),
    "rule-drops-a-peer": SilentFault(
        "{ip} rule add priority 100 to {peer} blackhole",
        "peer-route",
        "The rule `100: from all to {peer} blackhole` drops these packets.",
        "{ip} rule del priority 100 from all to {peer} blackhole",
        says="peer",
    ),
    "rule-drops-from-a-peer": SilentFault(
        "{ip} rule add priority 100 from {peer} unreachable",
        "peer-return",
        "The rule `100: from {peer} unreachable` drops these packets.",
        "{ip} rule del priority 100 from {peer} unreachable",
        says="peer",
    ),
    "rule-drops-all": SilentFault(
        "{ip} rule add priority 100 iif cni0 prohibit",
        "peer-route",
        "The rule `100: from all iif cni0 prohibit` drops these packets.",
        "{ip} rule del priority 100 from all iif cni0 prohibit",
    ),
    "rule-diverts-pods": SilentFault(
        "{ip} route add blackhole default table 99 && {ip} rule add priority 100 iif cni0 table 99",
        "peer-route",
        "The rule `100: from all iif cni0 lookup 99` sends these packets by the route `blackhole default table 99",
        "{ip} rule add to {network} priority 99 table main",
    ),
    "main-rule-gone": SilentFault(
        "ip rule del priority 32766",
        "peer-route",
        "No IPv4 rule looks up the main table, which has all routes to peers.",
        "ip rule add priority 32766 table main",
        versions=(4,),
    ),
    "blackhole-to-the-underlay": SilentFault(
        "{ip} route add blackhole {public}",
        "underlay-route",
        "The route `blackhole {public}",
        "{ip} route del blackhole {public} proto boot{metric}",
        says="peer",
    ),
    "blackhole-to-a-far-underlay": SilentFault(
        "{ip} route add prohibit {public}",
        "underlay-route",
        "The route `prohibit {public}",
        "{ip} route del prohibit {public} proto boot{metric}",
        says="peer",
        is_far=True,
    ),
    "underlays-network-gone": SilentFault(
        "{ip} route del {underlay_network} dev eth0",
        "underlay-network",
        "The route to {underlay_network} by eth0 is missing.",
        "{ip} route add {underlay_network} dev eth0 proto kernel{connected}",
        says="part",
    ),
    "way-to-the-underlay-gone": SilentFault(
        "{ip} route del default",
        "underlay-route",
        "The route `default via {router} dev eth0{metric}` is gone.",
        "{ip} route replace default via {router} dev eth0 proto boot{metric}",
        says="peer",
        is_far=True,
    ),
    "underlays-address-not-local": SilentFault(
        "{ip} route del table local local {local}",
        "underlay-address",
        "The local route of {local} is missing",
        "{ip} route replace local {local} dev eth0 table local proto kernel{own}",
    ),
    "underlays-address-gone": SilentFault(
        "ip addr del {local}/{underlay_length} dev eth0",
        "underlay-address",
        "No interface has the address {local} any more; eth0 had it",
        "{ip} addr add {local}/{underlay_length} dev eth0",
    ),
    "neighbour-pinned": SilentFault(
        "ip neigh replace {public} lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
        "underlay-neighbour",
        "A permanent neighbour entry of {public} on eth0 has the MAC 02:00:00:00:00:99",
        "ip neigh del {public} dev eth0",
        says="part",
    ),
    "gateway-pinned": SilentFault(
        "ip neigh replace {router} lladdr 02:00:00:00:00:99 dev eth0 nud permanent",
        "underlay-neighbour",
        "A permanent neighbour entry of {router} on eth0 has the MAC 02:00:00:00:00:99",
        "ip neigh del {router} dev eth0",
        says="part",
        is_far=True,
    ),
    "pod-of-a-peer-swallowed": SilentFault(
        "{ip} route add blackhole {pod}",
        "part-of-a-peer",
        "The route `blackhole {pod}",
        "{ip} route del blackhole {pod} proto boot{metric}",
        says="part",
    ),
    "half-of-a-peer-diverted": SilentFault(
        "{ip} route add {half} dev eth0",
        "peer-route",
        "The route `{half} dev eth0",
        "{ip} route del {half} dev eth0 proto boot{scope}{metric}",
        says="peer",
    ),
    "other-half-of-a-peer-diverted": SilentFault(
        "{ip} route add {other_half} dev eth0",
        "part-of-a-peer",
        "The route `{other_half} dev eth0",
        "{ip} route del {other_half} dev eth0 proto boot{scope}{metric}",
        says="part",
        is_answered=True,
    ),
    "pod-of-a-peer-here": SilentFault(
        "ip addr add {pod}/{bits} dev lo",
        "peer-address-here",
        "lo of this host has {pod}/{bits}.",
        "ip addr del {pod}/{bits} dev lo",
        says="part",
        is_answered=True,
    ),
    "bridge-down": SilentFault(
        "ip link set cni0 down",
        "bridge-down",
        "The bridge cni0 is down.",
        "ip link set cni0 up",
        and_then="{ip} addr replace {gateway} dev cni0",
    ),
    "bridges-address-gone": SilentFault(
        "ip addr del {gateway} dev cni0",
        "bridge-address",
        "The bridge cni0 has lost its address {gateway}.",
        "ip addr add {gateway} dev cni0",
    ),
    "bridge-of-another-subnet": SilentFault(
        "ip addr del {gateway} dev cni0 && ip addr add {other} dev cni0",
        "bridge-address",
        "The bridge cni0 has {other}",
        "ip addr add {gateway} dev cni0 && ip addr del {other} dev cni0",
    ),
    "bridges-route-gone": SilentFault(
        "{ip} route del {subnet} dev cni0",
        "bridge-route",
        "The route to {subnet} by cni0 is missing.",
        "{ip} route add {subnet} dev cni0 proto kernel{bridge}",
    ),
    "bridges-route-elsewhere": SilentFault(
        "{ip} route add {own_half} dev eth0",
        "bridge-route",
        "The route `{own_half} dev eth0",
        "{ip} route del {own_half} dev eth0 proto boot{scope}{metric}",
        says="own part",
        is_answered=True,
    ),
    "xfrm-blocks-pods": SilentFault(
        "ip xfrm policy add dir fwd src {subnet} dst {peer} action block",
        "xfrm-block",
        "The IPsec policy `dir fwd src {subnet} dst {peer}` blocks these packets.",
        "ip xfrm policy del dir fwd src {subnet} dst {peer}",
        is_told=False,
    ),
    "xfrm-blocks-the-tunnel": SilentFault(
        "ip xfrm policy add dir out src {any} dst {public}/{bits} action block",
        "xfrm-block",
        "The IPsec policy `dir out src {any} dst {public}/{bits}` blocks these packets.",
        "ip xfrm policy del dir out src {any} dst {public}/{bits}",
        is_told=False,
    ),
}


def words(own: Row, peer: Row) -> dict[str, str]:
    """What stands in braces, for a family."""
    is_4 = own.version == 4
    return {
        "ip": "ip" if is_4 else "ip -6",
        "network": "10.5.0.0/16" if is_4 else "fd00:10:5::/48",
        "subnet": own.cidr,
        "gateway": f"{own.gateway}/{own.length}",
        "own_half": "10.5.27.128/25" if is_4 else "fd00:10:5:1b:8000::/65",
        "other": "10.77.0.1/24" if is_4 else "fd00:77::1/64",
        "peer": peer.cidr,
        "other_half": "10.5.53.128/25" if is_4 else "fd00:10:5:35:8000::/65",
        "scope": " scope link" if is_4 else "",
        "half": "10.5.53.0/25" if is_4 else "fd00:10:5:35::/65",
        "pod": f"{peer.gateway[:-1]}2",
        "local": own.public,
        "public": peer.public,
        "router": "10.99.0.1" if is_4 else "fd00:99::1",
        "underlay_network": "10.99.0.0/16" if is_4 else "fd00:99::/64",
        "underlay_length": "16" if is_4 else "64",
        "bits": "32" if is_4 else "128",
        "any": "0.0.0.0/0" if is_4 else "::/0",
        "metric": "" if is_4 else " metric 1024",
        "connected": f" scope link src {own.public}" if is_4 else " metric 256",
        "bridge": f" scope link src {own.gateway}" if is_4 else " metric 256",
        "own": f" scope host src {own.public}" if is_4 else " metric 0",
    }


HEALTHY: Final = {
    "as it is": "true",
    "docker": "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && ip link set docker0 up",
    "wg-quick": "ip link add wg0 type bridge && ip link set wg0 up && ip route add default dev wg0 table 51820 && "
    "ip rule add not fwmark 51820 table 51820 priority 32765 && "
    "ip rule add table main suppress_prefixlength 0 priority 32764",
    "tailscale": "ip rule add fwmark 0x80000/0xff0000 table main priority 5210 && "
    "ip rule add fwmark 0x80000/0xff0000 unreachable priority 5250 && ip rule add table 52 priority 5270 && "
    "ip route add 100.64.0.7 dev lo table 52",
    "kube-ipvs": "ip link add kube-ipvs0 type bridge && ip addr add 10.96.0.1/32 dev kube-ipvs0 && "
    "ip addr add 10.96.0.10/32 dev kube-ipvs0",
    "strict reverse paths": "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.cni0.rp_filter=1 "
    "net/ipv4/conf/flannel.1/rp_filter=1 net.ipv4.conf.eth0.rp_filter=1",
    "loose IPsec": "ip xfrm policy add dir out src 192.0.2.0/24 dst 198.51.100.0/24 action block && "
    "ip xfrm policy add dir fwd src 10.5.27.0/24 dst 10.5.53.0/24 action allow",
    "an address without its route": "ip addr add 10.99.0.77/16 dev eth0 noprefixroute",
    "a second cluster's route": "ip route add 10.6.0.0/16 via 10.99.0.1 && ip route add blackhole 10.7.0.0/16",
    "a learned neighbour": "ip neigh replace 10.99.0.12 lladdr $(ip -j neigh show 10.99.0.12 dev eth0 | "
    'sed \'s/.*lladdr":"//; s/".*//\') dev eth0 nud reachable',
    "nothing is forwarded, which masq says": "sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0",
    "nobody forwards from the outside": "sysctl -qw net.ipv4.conf.eth0.forwarding=0",
}
"""What hosts have that loses no packet, as commands on n1."""
