"""The pod guard, a pure function: which frames a node takes from its pods, as a table of nftables of family bridge.

It stands before the bridge `cni0` decides where a frame goes, so that it is asked about frames between two pods of
the node, too. A port whose pod CNI has on record sends that pod's MAC and addresses alone, in ARP and neighbour
discovery as in IP (`exact`). Any other port sends addresses of the node's networks, and not those of the bridge.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.family import Address, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.rules import Packet

POD_TABLE: Final = "flannelette_pods"
BRIDGE: Final = "cni0"
_WORDS: Final = {4: "ip", 6: "ip6"}
_UNSET: Final = {4: ("0.0.0.0",), 6: ("::", "fe80::/10")}  # noqa: S104 - a source, as of DHCP and of who has none yet
"""Sources that every pod may have: none yet, and those of its link alone."""
_LINK_LOCAL: Final = "@th,64,16 & 0xffc0 == 0xfe80"
"""A neighbour advertisement, or solicitation, for a link-local address: 8 bytes from the header of ICMPv6."""
_MOST_FORGERS: Final = 64


class PodGuardMode(StrEnum):
    """How closely the source of what a pod sends is looked at."""

    OFF = "off"
    """Never: there is no guard."""
    SUBNET = "subnet"
    """Sources lie in a network of this node."""
    EXACT = "exact"
    """Sources are the pod's own, where CNI's results tell these."""


@frozen
class PodPort:
    """A port of the bridge, and what the pod behind it may send."""

    index: int
    """Index of the interface, which no later one gets; its name may be another pod's soon."""
    mac: bytes
    addresses: tuple[Address, ...]


@frozen
class PodGuard:
    """All of the guard."""

    networks: tuple[Network, ...]
    """The node's subnets, and the networks of the bridge's addresses."""
    gateways: tuple[Address, ...]
    """The addresses of the bridge."""
    bridged: tuple[int, ...] = ()
    """Indices of the bridge's ports. (Linux before 5.3, and many later ones, cannot ask for a port's bridge.)"""
    ports: tuple[PodPort, ...] = ()
    """Ports whose pod is known."""


def text_of(guard: PodGuard, forgers: Iterable[int] = ()) -> list[str]:
    """The transaction, in nft's notation, that puts the table in the place of the one there is.

    `forgers` are the indices of ports that are remembered.
    """
    table, known = f"bridge {POD_TABLE}", guard.ports
    addresses = {
        version: [f"{port.index} . {each}" for port in known for each in port.addresses if each.version == version]
        for version in _WORDS
    }
    lines = [f"add table {table}", f"delete table {table}", f"table {table} {{"]
    lines += [
        _set("ports", "iface_index", (str(port.index) for port in known)),
        _set("bridged", "iface_index", map(str, guard.bridged)),
        _set("macs", "iface_index . ether_addr", (f"{port.index} . {port.mac.hex(':')}" for port in known)),
        _set("pods4", "iface_index . ipv4_addr", addresses[4]),
        _set("pods6", "iface_index . ipv6_addr", addresses[6]),
        f"set forgers {{ type iface_index; size {_MOST_FORGERS}; flags dynamic,timeout; timeout 1h; "
        f"{_elements(f'{index} timeout 1h' for index in forgers)} }}",
    ]
    for name, chain in chains_of(guard).items():
        lines += [f"chain {name} {{", *chain, "}"]
    return [*lines, "}"]


def chains_of(guard: PodGuard) -> Mapping[str, list[str]]:
    """The chains and their rules."""
    own = [
        f"iif {port.index} @th,64,128 {int(each):#x} return"
        for port in guard.ports
        for each in port.addresses
        if each.version == 6
    ]
    return {
        "forged": ["update @forgers { iif }", 'counter drop comment "the source is not the pod\'s"'],
        "advertised": [*own, f"{_LINK_LOCAL} return", "goto forged"],
        "exact": [
            "iif . ether saddr != @macs goto forged",
            "iif . arp saddr ether != @macs goto forged",
            "iif . arp saddr ip @pods4 accept",
            f"arp saddr ip {_UNSET[4][0]} accept",
            "iif . ip saddr @pods4 accept",
            f"ip saddr {_UNSET[4][0]} udp dport 67 accept",
            "icmpv6 type { nd-router-advert, nd-redirect } goto forged",
            "icmpv6 type nd-neighbor-advert jump advertised",
            "ip6 saddr :: icmpv6 type nd-neighbor-solicit jump advertised",
            *(f"ip6 saddr {each} accept" for each in _UNSET[6]),
            "iif . ip6 saddr @pods6 accept",
            "goto forged",
        ],
        "subnet": [rule for version in _WORDS for rule in _of_subnet(guard, version)],
        "prerouting": [
            "type filter hook prerouting priority -300; policy accept;",
            "iif @ports goto exact",
            "iif @bridged goto subnet",
        ],
    }


CHAIN_REASONS: Final[Mapping[str, str]] = {
    "forged": "What is not the pod's is dropped, and the port is remembered for an hour.",
    "advertised": "A pod answers for its own IPv6 addresses alone.",
    "exact": "A pod of which CNI's results tell MAC and addresses sends these alone.",
    "subnet": "Any other pod sends addresses of this node's networks, and not those of the bridge.",
    "prerouting": "What pods send is looked at before the bridge hands it on.",
}
"""Why the rules of a chain exist, one sentence each."""


def verdict(guard: PodGuard, packet: Packet, incoming: str) -> str:
    """Why the guard does not take a packet of a pod, in words; empty: it does, or does not look at it."""
    source, version = packet.source, packet.source.version
    nets = [each for each in guard.networks if each.version == version]
    if incoming != BRIDGE or not nets or source.is_link_local or source.is_unspecified:
        return ""
    if source in guard.gateways:
        return f"{source} is an address of {BRIDGE} itself"
    return "" if any(source in each for each in nets) else f"{source} is in no network of this node's pods"


def _of_subnet(guard: PodGuard, version: int) -> list[str]:
    """Rules for pods that are not known; none, where no network of the family is.

    A rule for each network: a set of ranges is empty for a moment after its rules are in force (Linux 6.18).
    """
    word = _WORDS[version]
    nets = [str(each) for each in guard.networks if each.version == version]
    bridge = [each for each in guard.gateways if each.version == version]
    if not nets:
        return []
    of_bridge = f"{{ {', '.join(map(str, bridge))} }}"
    allowed = [*nets, *_UNSET[version]]
    if version == 4:
        rules = [f"arp saddr ip {of_bridge} goto forged"] if bridge else []
        rules += [*(f"arp saddr ip {each} accept" for each in allowed), "ether type arp goto forged"]
    else:
        rules = [f"icmpv6 type nd-neighbor-advert @th,64,128 {int(each):#x} goto forged" for each in bridge]
    rules += [f"{word} saddr {of_bridge} goto forged"] if bridge else []
    return [*rules, *(f"{word} saddr {each} accept" for each in allowed), f"ether type {word} goto forged"]


def _set(name: str, kind: str, elements: Iterable[str]) -> str:
    return f"set {name} {{ type {kind}; {_elements(elements)} }}"


def _elements(elements: Iterable[str]) -> str:
    text = ", ".join(elements)
    return f"elements = {{ {text} }};" if text else ""


def known_ports(found: Iterable[tuple[int, bytes, Iterable[bytes]]]) -> tuple[PodPort, ...]:
    """The ports of which index, MAC and addresses are known, sorted; of two records of one port none is believed."""
    ports: dict[int, set[PodPort]] = {}
    for index, mac, addresses in found:
        if index and len(mac) == 6 and (known := tuple(sorted(map(ip_address, addresses), key=lambda a: a.packed))):
            ports.setdefault(index, set()).add(PodPort(index, mac, known))
    return tuple(port for _, (port, *others) in sorted(ports.items()) if not others)
