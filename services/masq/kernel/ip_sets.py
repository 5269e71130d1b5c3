"""Sets of ipset, by netlink (linux/netfilter/ipset/ip_set.h): whether the kernel finds a packet's address in one."""

import socket
import struct
from typing import Final

from flannelette.services.core.family import Address
from flannelette.services.runtime.os.netlink import ACK, ask, attribute, attributes, text

_NETFILTER: Final = 12  # NETLINK_NETFILTER
_SUBSYSTEM: Final = 6 << 8  # NFNL_SUBSYS_IPSET
_TEST, _GET_BY_INDEX = 11, 15  # IPSET_CMD_
_PROTOCOL, _NAME, _DATA, _INDEX = 1, 2, 7, 11  # IPSET_ATTR_
_IP, _PORT, _PROTO = 1, 4, 7  # in IPSET_ATTR_DATA
_VERSION: Final = 7  # IPSET_PROTOCOL
_NESTED, _NETWORK_ORDER = 0x8000, 0x4000  # NLA_F_
_ABSENT: Final = 4103  # IPSET_ERR_EXIST


def set_name(index: int) -> str:
    """The name by which people know the set that a rule has as a number; empty: there is none."""
    _, values = _ask(_GET_BY_INDEX, 0, attribute(_INDEX | _NETWORK_ORDER, struct.pack(">H", index)))
    return text(values.get(_NAME, b""))


def is_member(name: str, address: Address, protocol: int = 0, port: int = 0) -> bool | None:
    """Whether a set has the address, with the port if it is a set of both; None: it is of another type."""
    kind, family = (1, socket.AF_INET) if address.version == 4 else (2, socket.AF_INET6)
    data = attribute(_IP | _NESTED, attribute(kind | _NETWORK_ORDER, address.packed))
    if protocol:
        data += attribute(_PROTO, bytes((protocol,)))
    if port:
        data += attribute(_PORT | _NETWORK_ORDER, struct.pack(">H", port))
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
