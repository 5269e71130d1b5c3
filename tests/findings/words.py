"""What stands in braces in the rows of faults, and what hosts have that loses no packet."""

import sys
from pathlib import Path
from typing import Final

from tests.hosts.two_hosts import Row


def words(own: Row, peer: Row) -> dict[str, str]:
    """What stands in braces, for a family."""
    is_4 = own.version == 4
    return {
        "ip": "ip" if is_4 else "ip -6",
        "family": "IPv4" if is_4 else "IPv6",
        "device": own.device,
        "network": "10.5.0.0/16" if is_4 else "fd00:10:5::/48",
        "subnet": own.cidr,
        "gateway": f"{own.gateway}/{own.length}",
        "own_half": "10.5.27.128/25" if is_4 else "fd00:10:5:1b:8000::/65",
        "own_pod": f"{own.gateway[:-1]}2",
        "own_quarter": "10.5.27.64/26" if is_4 else "fd00:10:5:1b:4000::/66",
        "first": own.gateway,
        "second": "10.5.27.7/24" if is_4 else "fd00:10:5:1b::7/64",
        "other": "10.77.0.1/24" if is_4 else "fd00:77::1/64",
        "peer": peer.cidr,
        "other_half": "10.5.53.128/25" if is_4 else "fd00:10:5:35:8000::/65",
        "scope": " scope link" if is_4 else "",
        "half": "10.5.53.0/25" if is_4 else "fd00:10:5:35::/65",
        "pod": f"{peer.gateway[:-1]}2",
        "stray": f"{peer.gateway[:-1]}77/{peer.length}",
        "nodad": "" if is_4 else " nodad",
        "local": own.public,
        "public": peer.public,
        "router": "10.99.0.1" if is_4 else "fd00:99::1",
        "underlay_network": "10.99.0.0/16" if is_4 else "fd00:99::/64",
        "underlay_part": "10.99.0.0/24" if is_4 else "fd00:99::/112",
        "underlay_length": "16" if is_4 else "64",
        "bits": "32" if is_4 else "128",
        "any": "0.0.0.0/0" if is_4 else "::/0",
        "metric": "" if is_4 else " metric 1024",
        "connected": f" scope link src {own.public}" if is_4 else " metric 256",
        "bridge": f" scope link src {own.gateway}" if is_4 else " metric 256",
        "iptables": "iptables" if is_4 else "ip6tables",
        "nft": "ip" if is_4 else "ip6",
        "forwarding": "net.ipv4.ip_forward" if is_4 else "net.ipv6.conf.all.forwarding",
        "narrow": f"proto kernel scope link src {own.public}" if is_4 else "proto kernel metric 256",
        "python": sys.executable,
        "firewalld": str(Path(__file__).with_name("firewalld.nft")),
        "own": f" scope host src {own.public}" if is_4 else " metric 0",
    }


HEALTHY: Final = {
    "as it is": "true",
    "an egress gateway of one pod": "ip route add default via 10.99.0.1 table 99 && "
    "ip rule add from 10.5.27.2 priority 100 table 99 && ip rule add to 10.5.0.0/16 priority 99 table main",
    "a rule about one pod by marks": "ip route add default via 10.99.0.1 table 99 && "
    "ip rule add from 10.5.27.2 fwmark 0x9/0x9 priority 100 table 99",
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
    "what is right for a pod, and set": "M=$(ip neigh show 10.5.27.2 dev cni0 | sed 's/.*lladdr //; s/ .*//') && "
    "ip neigh replace 10.5.27.2 lladdr $M dev cni0 nud permanent && bridge fdb replace $M dev veth0 master static && "
    "ip route add 10.5.27.2 dev cni0",
    "what is set for nobody": "ip neigh replace 10.5.27.99 lladdr 02:00:00:00:00:99 dev cni0 nud permanent && "
    "bridge fdb replace 02:00:00:00:00:98 dev veth0 master static && ip link add other type bridge && "
    "ip link set other up && ip route add 10.5.27.98 dev other",
    "a learned neighbour": "ip neigh replace 10.99.0.12 lladdr $(ip -j neigh show 10.99.0.12 dev eth0 | "
    'sed \'s/.*lladdr":"//; s/".*//\') dev eth0 nud reachable',
}
"""What hosts have that loses no packet, as commands on n1."""
