"""Where the kernel sends packets, by netlink (linux/rtnetlink.h): routes, the ends of tunnels, MAC addresses."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.family import Address, Network
from flannelette.services.masq.kernel.nf_tables import attributes, text

_SOL_NETLINK, _STRICT = 270, 12  # NETLINK_GET_STRICT_CHK: a dump has only what was asked for
_REQUEST, _DUMP = 1, 0x300
_ERROR, _DONE = 2, 3
_HEADER: Final = struct.Struct("=IHHII")
_GETLINK, _GETROUTE, _GETNEIGH = 18, 26, 30  # RTM_
_AF_BRIDGE: Final = 7
_BUFFER: Final = 1 << 17
_ROUTE, _NEIGHBOUR, _LINK = (struct.Struct(form) for form in ("=8BI", "=BxxxiHBB", "=BxHiII"))
_LINK_NAME, _MASTER = 3, 10  # IFLA_
_DESTINATION, _DEVICE, _GATEWAY, _SOURCE = 1, 4, 5, 7  # RTA_
_TO, _MAC = 1, 2  # NDA_
_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Way:
    """How the kernel sends packets to an address."""

    device: str
    """The device that they leave by."""
    source: Address | None = None
    """The address of this host that they leave under; None: the kernel does not say."""
    gateway: Address | None = None
    """The router that they go to first; None: the address is on the link."""


def way_to(address: Address) -> Way | None:
    """The way to an address; None: no route leads there, or the kernel does not say."""
    body = _ROUTE.pack(_af(address), 8 * len(address.packed), 0, 0, 0, 0, 0, 0, 0)
    for _, values in ask(_GETROUTE, body + _attribute(_DESTINATION, address.packed), _ROUTE.size):
        if device := _name(values.get(_DEVICE, b"")):
            return Way(device, _address(values, _SOURCE), _address(values, _GATEWAY))
    return None


def mac_of(address: Address, device: str) -> bytes:
    """The MAC address of a neighbour, as far as the kernel knows it; else empty."""
    body = _NEIGHBOUR.pack(_af(address), index_of(device), 0, 0, 0) + _attribute(_TO, address.packed)
    return next((values.get(_MAC, b"") for _, values in ask(_GETNEIGH, body, _NEIGHBOUR.size)), b"")


def tunnel_ends(device: str, network: Network) -> frozenset[Address]:
    """The addresses between which a device carries a network's packets, but for the own one.

    They are in its forwarding entries (VXLAN), or they are the gateways of its routes (IPIP, FOU).
    """
    index = index_of(device)
    if not index:
        return frozenset()
    entries = _NEIGHBOUR.pack(_AF_BRIDGE, index, 0, 0, 0)
    found = {_address(values, _TO) for _, values in ask(_GETNEIGH, entries, _NEIGHBOUR.size, _DUMP)}
    af = socket.AF_INET if network.version == 4 else socket.AF_INET6
    routes = _ROUTE.pack(af, 0, 0, 0, 0, 0, 0, 0, 0) + _attribute(_DEVICE, struct.pack("=I", index))
    found |= {_address(values, _GATEWAY) for _, values in ask(_GETROUTE, routes, _ROUTE.size, _DUMP)}
    ends = (end for end in found if end is not None and int(end) and end.version == network.version)
    return frozenset(end for end in ends if end not in network)


def ports_of(bridge: str) -> list[str]:
    """The interfaces that are ports of a bridge, sorted."""
    master = struct.pack("=I", index_of(bridge))
    links = ask(_GETLINK, _LINK.pack(0, 0, 0, 0, 0), _LINK.size, _DUMP)
    found = (text(values.get(_LINK_NAME, b"")) for _, values in links if values.get(_MASTER) == master)
    return sorted(found)


def ask(kind: int, body: bytes, head: int, flags: int = 0) -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """Sends a request; returns the fixed part and the attributes of each answer, nothing if the kernel refuses."""
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as kernel:
        kernel.settimeout(_SECONDS)
        kernel.bind((0, 0))
        kernel.setsockopt(_SOL_NETLINK, _STRICT, 1)
        kernel.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body)
        while True:
            data, start = kernel.recv(_BUFFER), 0
            while start + _HEADER.size <= len(data):
                length, answer, *_ = _HEADER.unpack_from(data, start)
                if answer in (_ERROR, _DONE):
                    return
                content = data[start + _HEADER.size : start + length]
                yield content[:head], attributes(content[head:])
                start += max(length + 3 & ~3, _HEADER.size)
            if not flags:
                return


def _attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)


def _address(values: dict[int, bytes], number: int) -> Address | None:
    value = values.get(number, b"")
    return ip_address(value) if len(value) in (4, 16) else None


def _af(address: Address) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6


def index_of(device: str) -> int:
    """Index of an interface; 0: there is none."""
    try:
        return socket.if_nametoindex(device)
    except OSError:
        return 0


def _name(index: bytes) -> str:
    try:
        return socket.if_indextoname(struct.unpack("=I", index)[0])
    except (OSError, struct.error):
        return ""
