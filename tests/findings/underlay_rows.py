"""What is wrong with the underlay of a host, or with programs beside the dataplane, one row each."""

from typing import Final

from tests.findings.fault import SilentFault

_FLANNELD = "#!/bin/sh\\nfor i in $(seq 300); do sleep 1; done"

_THIEF: Final = """
import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try:
        taken.bind(("", 8472))
    except OSError:
        continue
    open("{directory}/taken", "w")
    time.sleep(300)
"""

UNDERLAY_FAULTS: Final = {
    "underlay-route-narrow": SilentFault(
        "{ip} route change {underlay_network} dev eth0 {narrow} mtu 1400",
        "underlay-mtu",
        "The route `{underlay_network} dev eth0 {narrow} mtu 1400` has a smaller MTU than eth0 (1500). If that is "
        "right, set the option MTU of the backend.",
        "{ip} route replace {underlay_network} dev eth0 {narrow}",
        says="part",
        is_answered=True,
        problem="Packets of pods to n2 of more than * bytes do not pass; pods send up to *.",
        evidence="{ip} route get {public} from {local} ipproto udp dport 8472: mtu 1400",
    ),
    "tunnel-fails-the-reverse-path": SilentFault(
        "ip link add away type bridge && ip link set away up && sysctl -qw net.ipv4.conf.eth0.rp_filter=1 && "
        "ip route add {public} dev away",
        "underlay-return",
        "The reverse path filter of eth0 drops these packets: the route to {public} does not leave by eth0.",
        "sysctl -w net.ipv4.conf.eth0.rp_filter=2",
        says="part",
        versions=(4,),
        is_told=False,
        and_then="ip link del away && sysctl -qw net.ipv4.conf.eth0.rp_filter=0",
        what="the route to a peer leaves by another interface, with `rp_filter` 1 on the underlay",
        problem="Packets of the tunnel from n2 are dropped.",
        evidence="ip route get {local} from {public} iif eth0: Invalid *",
    ),
    "gateway-is-nobody": SilentFault(
        "sysctl -qw net.ipv4.neigh.eth0.retrans_time_ms=20 && ip route replace default via 10.99.0.77 dev eth0 && "
        "bash -c 'echo > /dev/udp/{public}/9' && sleep 0.3",
        "underlay-neighbour",
        "No reply to ARP for 10.99.0.77: the gateway is down, or has another address, "
        "or eth0 is in another network (VLAN, cable).",
        "",
        says="part",
        is_far=True,
        versions=(4,),
        undo="ip route replace default via {router} dev eth0",
        what="a default gateway that nobody has",
        problem="Packets to n2 are not sent, because no host on eth0 answers for 10.99.0.77.",
        evidence="neigh 10.99.0.77 dev eth0 FAILED",
    ),
    "peer-has-our-mac": SilentFault(
        "ip -br link show eth0 | tr -s ' ' | cut -d' ' -f3 > {directory}/mac && "
        "bash -c 'echo > /dev/udp/{public}/9' && sleep 0.1 && "
        "ip link set eth0 address $(ip neigh show {public} dev eth0 | sed 's/.*lladdr //; s/ .*//') && "
        "bash -c 'echo > /dev/udp/{public}/9' && sleep 0.1",
        "underlay-duplicate",
        "eth0 of this host and {public} both have the MAC *, as cloned machines do: give one of the two another MAC.",
        "",
        says="part",
        versions=(4,),
        is_told=False,
        is_answered=True,
        undo="ip link set eth0 address $(cat {directory}/mac)",
        what="a peer with the MAC of this host",
        problem="{public}, the way to n2, has the MAC of this host: a switch delivers packets to one of the two.",
        evidence="neigh {public} dev eth0 lladdr *, the address of eth0",
    ),
    "address-of-another-host": SilentFault(
        "ip netns exec {n2} ip addr add {local}/64 dev eth0 nodad && "
        "sysctl -qw net.ipv6.conf.all.accept_dad=1 net.ipv6.conf.eth0.accept_dad=1 "
        "net.ipv6.conf.eth0.dad_transmits=1 net.ipv6.neigh.eth0.retrans_time_ms=100 && "
        "ip addr del {local}/64 dev eth0 && ip addr add {local}/64 dev eth0",
        "underlay-duplicate",
        "Another host on eth0 has {local} too, as the kernel's check for duplicates has found: give one of the two "
        "another address, then delete and add this one.",
        "",
        versions=(6,),
        undo="ip netns exec {n2} ip addr del {local}/64 dev eth0 && "
        "sysctl -qw net.ipv6.conf.eth0.accept_dad=0 net.ipv6.conf.all.accept_dad=0 && "
        "ip addr del {local}/64 dev eth0 && ip addr add {local}/64 dev eth0 nodad",
        what="another host with the IPv6 address of this one",
        problem="This host does not use its address {local}, so nothing from any peer arrives.",
        evidence="ip -6 addr show dev eth0 to {local}: dadfailed",
    ),
    "port-taken": SilentFault(
        f"({{python}} -c '{_THIEF}' >/dev/null 2>&1 &) ; "
        "until test -e {directory}/taken; do ip link set {device} down; sleep 0.02; done",
        "port-taken",
        "UDP port 8472 is taken by * (process *).",
        "kill *",
        versions=(4,),
        and_then="rm {directory}/taken",
        what="a program that has the UDP port of the tunnel",
        says="device",
        problem="The overlay's device {device} cannot be used, so nothing goes to any peer.",
        evidence="/proc/net/udp: port 8472; /proc/*/fd has its socket",
    ),
    "another-flanneld": SilentFault(
        f"printf '{_FLANNELD}' > {{directory}}/flanneld && chmod +x {{directory}}/flanneld && "
        "({directory}/flanneld --subnet-file={directory}/subnet.env >/dev/null 2>&1 &)",
        "flanneld",
        "A flanneld runs beside this dataplane: flanneld (process *).",
        "kill *",
        says="own part",
        versions=(4,),
        is_told=False,
        is_answered=True,
        what="a flanneld with the same `--subnet-file`",
        problem="Two programs write the routes, the device and the subnet.env of this node.",
        evidence="/proc/*/comm: flanneld",
    ),
}
