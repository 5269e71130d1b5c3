"""Sets of ipset, by netlink (linux/netfilter/ipset/ip_set.h): whether the kernel finds a packet's address in one."""

import socket
import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from flannelette.services.core.family import Address
from flannelette.services.runtime.os.netlink import ACK, ask, attribute, attributes, text

_NETFILTER: Final = 12  # NETLINK_NETFILTER
_SUBSYSTEM: Final = 6 << 8  # NFNL_SUBSYS_IPSET
_TEST, _HEADER, _GET_BY_INDEX = 11, 12, 15  # IPSET_CMD_
_PROTOCOL, _NAME, _TYPE, _DATA, _INDEX = 1, 2, 3, 7, 11  # IPSET_ATTR_
_IP, _PORT, _PROTO, _ETHER, _IP2, _IFACE = 1, 4, 7, 17, 20, 23  # in IPSET_ATTR_DATA
_VERSION: Final = 7  # IPSET_PROTOCOL
_NESTED, _NETWORK_ORDER = 0x8000, 0x4000  # NLA_F_
_ABSENT: Final = 4103  # IPSET_ERR_EXIST


Part: TypeAlias = Address | int | str | bytes
"""A part of an element: an address, a port, the name of an interface, or a MAC address."""


def set_name(index: int) -> str:
    """The name by which people know the set that a rule has as a number; empty: there is none."""
    _, values = _ask(_GET_BY_INDEX, 0, attribute(_INDEX | _NETWORK_ORDER, struct.pack(">H", index)))
    return text(values.get(_NAME, b""))


def type_of(name: str) -> str:
    """The type of a set, such as `hash:ip,port`; empty: there is no such set."""
    _, values = _ask(_HEADER, 0, attribute(_NAME, name.encode() + b"\0"))
    return text(values.get(_TYPE, b""))


def is_member(name: str, parts: Sequence[Part], version: int, protocol: int = 0) -> bool | None:
    """Whether a set has an element of these parts, in the order of its type; `protocol`: that of the port in it.

    None: the kernel does not say.
    """
    data, addresses = b"", iter((_IP, _IP2))
    for part in parts:
        match part:
            case int():
                data += attribute(_PORT | _NETWORK_ORDER, struct.pack(">H", part))
                data += attribute(_PROTO, bytes((protocol,))) if protocol else b""
            case str():
                data += attribute(_IFACE, part.encode() + b"\0")
            case bytes():
                data += attribute(_ETHER, part)
            case _:
                kind = 1 if part.version == 4 else 2  # IPSET_ATTR_IPADDR_
                data += attribute(next(addresses) | _NESTED, attribute(kind | _NETWORK_ORDER, part.packed))
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    code, _ = _ask(_TEST, family, attribute(_NAME, name.encode() + b"\0") + attribute(_DATA | _NESTED, data))
    return {0: True, _ABSENT: False}.get(code)


def _ask(command: int, family: int, body: bytes) -> tuple[int, dict[int, bytes]]:
    """Sends a request; returns the number of the error, 0 for none, and the attributes of the answer."""
    content = bytes((family, 0, 0, 0)) + attribute(_PROTOCOL, bytes((_VERSION,))) + body
    flags = ACK if command == _TEST else 0
    try:
        answers = ask(_NETFILTER, _SUBSYSTEM | command, content, flags)
    except OSError as error:
        return error.errno or -1, {}
    return 0, attributes(answers[0][1][4:]) if answers else {}
