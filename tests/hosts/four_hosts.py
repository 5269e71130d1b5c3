"""Four hosts whose packets the rules decide about, in both families.

pod ── host ══ other host (its pod)        ══ stands for the overlay's device
         └──── outside
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from itertools import cycle
from pathlib import Path

from flannelette.services.core.family import FAMILIES, IPV4, Family, Network
from flannelette.services.masq.firewalls.firewall import Firewall
from flannelette.services.masq.firewalls.iptables_legacy.firewall import IptablesFirewall
from flannelette.services.masq.firewalls.iptables_nft import IptablesNftFirewall
from flannelette.services.masq.firewalls.nftables import NftablesFirewall
from flannelette.services.masq.rules import TRANSLATIONS, Chain, Packet, deciding_rule
from tests.hosts.masq import DUAL_CHAINS, Host
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE

MARKED_PORT = 4000
ports = cycle(range(5000, 9000))


@dataclass(frozen=True)
class Addresses:
    """Who has which address in one family."""

    pod: str
    gateway: str
    vtep: str
    other_pod: str
    host: str
    outside: str
    multicast: str
    subnet: str
    other_subnet: str
    network: str


IN = {
    4: Addresses(
        pod="10.5.27.2",
        gateway="10.5.27.1",
        vtep="10.5.27.0",
        other_pod="10.5.3.2",
        host="192.0.2.1",
        outside="192.0.2.9",
        multicast="224.0.1.7",
        subnet="10.5.27.0/24",
        other_subnet="10.5.3.0/24",
        network="10.5.0.0/16",
    ),
    6: Addresses(
        pod="fd00:10:5:1b::2",
        gateway="fd00:10:5:1b::1",
        vtep="fd00:10:5:1b::",
        other_pod="fd00:10:5:3::2",
        host="2001:db8::1",
        outside="2001:db8::9",
        multicast="ff0e::107",
        subnet="fd00:10:5:1b::/64",
        other_subnet="fd00:10:5:3::/64",
        network="fd00:10:5::/48",
    ),
}


class Lab:
    """The four namespaces, with addresses and routes of both families."""

    firewall: Firewall
    addresses: Mapping[int, Addresses]
    """By version of the family."""

    def __init__(self, make: NamespaceMaker) -> None:
        self.pod, self.host, self.other, self.outside = make(), make(), make(), make()
        for name, peer in (("pod", self.pod), ("vtep", self.other), ("eth", self.outside)):
            self.host.ip("link", "add", name, "type", "veth", "peer", "uplink", "netns", peer.name)
            self.host.ip("link", "set", name, "up")
            peer.ip("link", "set", "uplink", "up")
        self.host.run(
            "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"
        )
        self.move(IN)

    def move(self, addresses: Mapping[int, Addresses]) -> None:
        """Gives everybody these addresses, and no others."""
        self.addresses = addresses
        families = [_commands(family, addresses[family.version]) for family in FAMILIES]
        for name, devices in (
            ("pod", ["uplink"]),
            ("host", ["pod", "vtep", "eth"]),
            ("other_pod", ["uplink"]),
            ("outside", ["uplink"]),
        ):
            commands = [f"ip address flush dev {device} scope global" for device in devices]
            commands += [command for each in families for command in each[name]]
            self.namespace(name).run("sh", "-ec", "; ".join(commands))

    def namespace(self, name: str) -> NetworkNamespace:
        return {"pod": self.pod, "other_pod": self.other, "outside": self.outside}.get(name, self.host)


def _commands(family: Family, a: Addresses) -> dict[str, list[str]]:
    """What gives each host its addresses and routes of one family."""
    subnet = ip_network(a.subnet)
    outside = 24 if family is IPV4 else 64
    nodad = " nodad" if family.version == 6 else ""

    def add(address: str, bits: int, device: str) -> str:
        return f"ip address add {address}/{bits} dev {device}{nodad}"

    return {
        "pod": [add(a.pod, subnet.prefixlen, "uplink"), f"ip route replace default via {a.gateway}"],
        "host": [
            add(a.gateway, subnet.prefixlen, "pod"),
            add(a.vtep, family.bits, "vtep"),
            add(a.host, outside, "eth"),
            f"ip route replace {a.other_subnet} via {a.other_pod} dev vtep onlink",
        ],
        "other_pod": [
            add(a.other_pod, family.bits, "uplink"),
            f"ip route replace default via {a.vtep} dev uplink onlink",
        ],
        "outside": [add(a.outside, outside, "uplink"), f"ip route replace {a.network} via {a.host}"],
    }


def addresses_in(network: Network, subnet: Network, other_subnet: Network) -> Addresses:
    """As in `IN`, in another network."""
    return replace(
        IN[network.version],
        pod=str(subnet[2]),
        gateway=str(subnet[1]),
        vtep=str(subnet[0]),
        other_pod=str(other_subnet[2]),
        subnet=str(subnet),
        other_subnet=str(other_subnet),
        network=str(network),
    )


FIREWALLS: dict[str, Callable[[Path], Firewall]] = {
    "legacy": lambda directory: IptablesFirewall(directory / "xtables.lock"),
    "nft": lambda _: IptablesNftFirewall(),
    "nftables": lambda _: NftablesFirewall(),
}


def mark_a_port(host: Host, firewall: str) -> None:
    """What goes to one port gets kube-proxy's mark, and forwarding is forbidden but for what our rules accept.

    A table of our own cannot accept what another one drops.
    """
    variant = "legacy" if firewall == "legacy" else "nft"
    for program in (f"iptables-{variant}", f"ip6tables-{variant}"):
        mark = f"-t mangle -A PREROUTING -p udp --dport {MARKED_PORT} -j MARK --set-mark 0x4000"
        host.run(program, "-w", *mark.split())
        if firewall != "nftables":
            host.run(program, "-w", "-P", "FORWARD", "DROP")


async def source_seen(lab: Lab, family: Family, sender: str, receiver: str, port: int) -> str:
    """Sends a datagram; the source address that the receiver sees."""
    addresses, af = lab.addresses[family.version], socket.AddressFamily(family.af)
    destination = getattr(addresses, receiver)
    loop = asyncio.get_running_loop()
    with lab.namespace("outside" if receiver == "multicast" else receiver).inside():
        receiving = socket.socket(af, socket.SOCK_DGRAM)
        receiving.bind(("", port))
        if receiver == "multicast":
            join(receiving, family, destination)
    with lab.namespace(sender).inside():
        sending = socket.socket(af, socket.SOCK_DGRAM)
        sending.bind((getattr(addresses, sender), 0))
        if receiver == "multicast":
            send_multicast_by(sending, family, "eth")
    with sending, receiving:
        receiving.setblocking(False)
        sending.sendto(b"x", (destination, port))
        _, source = await asyncio.wait_for(loop.sock_recvfrom(receiving, 16), PATIENCE)
    return str(source[0])


def join(receiving: socket.socket, family: Family, group: str) -> None:
    packed, index = socket.inet_pton(family.af, group), socket.if_nametoindex("uplink").to_bytes(4, sys.byteorder)
    if family is IPV4:
        receiving.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, packed + bytes(4) + index)
    else:
        receiving.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed + index)


def send_multicast_by(sending: socket.socket, family: Family, device: str) -> None:
    index = socket.if_nametoindex(device).to_bytes(4, sys.byteorder)
    if family is IPV4:
        sending.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, bytes(8) + index)
    else:
        sending.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)


def source_expected(
    family: Family,
    sender: str,
    receiver: str,
    mark: int,
    chains: Sequence[Chain] = DUAL_CHAINS,
    addresses: Addresses | None = None,
) -> str:
    """What the model says."""
    addresses = addresses or IN[family.version]
    source, destination = getattr(addresses, sender), getattr(addresses, receiver)
    chain = next(c for c in chains if c.family is family and c.table == "nat")
    place = deciding_rule(chain, Packet(ip_address(source), ip_address(destination), mark))
    leaves_by: str = addresses.vtep if receiver == "other_pod" else addresses.host
    if place is None or chain.rules[place].action not in TRANSLATIONS:
        return str(source)
    pool = chain.rules[place].pool
    return str(pool) if pool else leaves_by


PAIRS = [
    ("pod", "outside"),
    ("pod", "other_pod"),
    ("other_pod", "pod"),
    ("other_pod", "outside"),
    ("outside", "pod"),
    ("outside", "other_pod"),
    ("host", "pod"),
    ("host", "outside"),
    ("host", "other_pod"),
    ("gateway", "outside"),
    ("gateway", "multicast"),
    ("vtep", "other_pod"),
]
