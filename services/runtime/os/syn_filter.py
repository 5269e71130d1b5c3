"""A filter on a listening TCP socket: the kernel drops the first packet of each connection from some networks.

It is a classic BPF program (socket(7), SO_ATTACH_FILTER), for which a process needs no right where the socket is its
own. Accepted sockets inherit it, and lose nothing by it: it looks at packets that open a connection only.
"""

import ctypes
import socket
import struct
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Final

MOST: Final = 400
"""Networks of a filter: the kernel limits a program by net.core.optmem_max, 20 KB by default."""
_ATTACH_FILTER: Final = 26
_DETACH_FILTER: Final = 27
_LOAD_BYTE, _LOAD_WORD, _RETURN = 0x30, 0x20, 0x06
_SHIFT_RIGHT, _JUMP, _IF_EQUAL, _IF_BITS = 0x74, 0x05, 0x15, 0x45
_NETWORK_HEADER: Final = 0xFFF00000
"""SKF_NET_OFF: offsets from here on are into the IP header."""
_FLAGS, _SYN = 13, 0x02
_ALL: Final = 0xFFFFFFFF
_Statement = tuple[int, int, int, int]


def attach(listening: socket.socket, networks: Collection[IPv4Network | IPv6Network]) -> None:
    """Drops connections from these networks, IPv4 addresses and /64 of IPv6, at most MOST; none: all are let in.

    Raises OSError.
    """
    if not networks:
        listening.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        return
    program = b"".join(struct.pack("=HBBI", *each) for each in _program(networks))
    text = ctypes.create_string_buffer(program)
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(text))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)


def _program(networks: Collection[IPv4Network | IPv6Network]) -> Iterator[_Statement]:
    old = [each.network_address for each in networks if isinstance(each, IPv4Network)][:MOST]
    new = [each for each in networks if isinstance(each, IPv6Network)][: MOST - len(old)]
    yield (_LOAD_BYTE, 0, 0, _FLAGS)
    yield (_IF_BITS, 1, 0, _SYN)
    yield (_RETURN, 0, 0, _ALL)
    yield (_LOAD_BYTE, 0, 0, _NETWORK_HEADER)
    yield (_SHIFT_RIGHT, 0, 0, 4)
    yield (_IF_EQUAL, 0, 1, 6)
    yield (_JUMP, 0, 0, 2 + 2 * len(old))
    yield from _of_ipv4(old)
    for each in new:
        high, low = struct.unpack("!II", each.network_address.packed[:8])
        yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8)
        yield (_IF_EQUAL, 0, 3, high)
        yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12)
        yield (_IF_EQUAL, 0, 1, low)
        yield (_RETURN, 0, 0, 0)
    yield (_RETURN, 0, 0, _ALL)


def _of_ipv4(addresses: Collection[IPv4Address]) -> Iterator[_Statement]:
    yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12)
    for each in addresses:
        yield (_IF_EQUAL, 0, 1, int(each))
        yield (_RETURN, 0, 0, 0)
    yield (_RETURN, 0, 0, _ALL)
