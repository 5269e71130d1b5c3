"""Facts that decide about a packet, each asked of the kernel: whether a set of ipset has its address, what became of
connections before it, and whether a program of this host has the queue (NFQUEUE) or the port that it goes to.
"""

import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from ipaddress import IPv6Address, ip_address
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from flannelette.services.core.family import Address, Network
from flannelette.services.runtime.os.netlink import (
    ACK,
    DUMP,
    REQUEST,
    ask,
    attribute,
    attributes,
    exchange,
    message,
    open_netlink,
    text,
)

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


_GET: Final = 0x101  # NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
_NFGENMSG: Final = struct.Struct("=BBH")  # struct nfgenmsg
_ORIGINAL, _REPLY, _STATUS, _FILTER = 1, 2, 3, 25  # CTA_
_OF_ADDRESSES, _OF_PROTOCOL = 1, 2  # CTA_TUPLE_
_ADDRESSES: Final = {4: (1, 2), 6: (3, 4)}  # CTA_IP_
_NUMBER, _SOURCE_PORT = 1, 2  # CTA_PROTO_
_OF_ORIGINAL, _OF_REPLY, _BY_SOURCE, _BY_DESTINATION = 1, 2, 1, 2  # CTA_FILTER_
_IS_ANSWERED, _IS_ASSURED = 1 << 1, 1 << 2  # IPS_
_TCP: Final = 6
_MOST: Final = 4096
"""Connections that are looked at."""


class Connection(NamedTuple):
    """A connection that the kernel tracks."""

    source: Address
    destination: Address
    """Destination as the packets had it."""
    answering: Address
    """The source of answers: the destination that a rule has given."""
    protocol: int
    port: int
    """Port that answers come from."""
    is_answered: bool
    """The other end has answered, and over TCP has not refused the connection."""
    seen_as: Address
    """The destination of answers: the source that a rule has given."""
    is_heard: bool
    """A packet has come back, whatever it says."""


def connections_to(given: Iterable[Network]) -> list[Connection]:
    """The connections that a rule has sent to these addresses; none: there are none, or the kernel does not say."""
    found = _tracked(given, 0, _BY_SOURCE)
    return [each for network, each in found if each.answering in network and each.answering != each.destination]


def connections_under(given: Iterable[Network]) -> list[Connection]:
    """The connections to which a rule has given these sources; none: there are none, or the kernel does not say."""
    found = _tracked(given, 1, _BY_DESTINATION)
    return [each for network, each in found if each.seen_as in network and each.seen_as != each.source]


def _tracked(given: Iterable[Network], end: int, flag: int) -> list[tuple[Network, Connection]]:
    """The connections of which answers may have a network at this end: 0 is their source, 1 their destination."""
    found = list[tuple[Network, Connection]]()
    for network in given:
        version = network.version
        body = _NFGENMSG.pack(socket.AF_INET if version == 4 else socket.AF_INET6, 0, 0)
        # A kernel before 5.8 tells others, too; of IPv6, Linux up to 6.18 tells all that do not match.
        if version == 4 and network.prefixlen == network.max_prefixlen:
            address = attribute(_ADDRESSES[version][end], network.network_address.packed)
            body += attribute(_REPLY, attribute(_OF_ADDRESSES, address, nested=True), nested=True)
            flags = attribute(_OF_ORIGINAL, bytes(4)) + attribute(_OF_REPLY, struct.pack("=I", flag))
            body += attribute(_FILTER, flags, nested=True)
        with suppress(OSError), closing(open_netlink(_NETFILTER)) as kernel:
            for _, content in islice(exchange(kernel, message(_GET, body, REQUEST | DUMP)), _MOST):
                each = _read(version, attributes(content[_NFGENMSG.size :]))
                found += [(network, each)] if each is not None else []
    return found


def _read(version: int, values: dict[int, bytes]) -> Connection | None:
    first, answer = (attributes(values.get(way, b"")) for way in (_ORIGINAL, _REPLY))
    found = [
        attributes(each.get(_OF_ADDRESSES, b"")).get(place)
        for each in (first, answer)
        for place in _ADDRESSES[version]
    ]
    about, status = attributes(answer.get(_OF_PROTOCOL, b"")), int.from_bytes(values.get(_STATUS, b""), "big")
    source, destination, answering, seen_as = found
    if source is None or destination is None or answering is None or seen_as is None:
        return None
    protocol, port = (int.from_bytes(about.get(each, b""), "big") for each in (_NUMBER, _SOURCE_PORT))
    is_answered = bool(status & (_IS_ASSURED if protocol == _TCP else _IS_ANSWERED))  # a refusal is an answer, too
    ends = ip_address(source), ip_address(destination), ip_address(answering)
    return Connection(*ends, protocol, port, is_answered, ip_address(seen_as), bool(status & _IS_ANSWERED))


_NET: Final = Path("/proc/thread-self/net")
_SETTINGS: Final = Path("/proc/sys/net/ipv4/conf")
_QUEUES: Final = "nfnetlink_queue"
_SOCKETS: Final = {6: ("tcp6", "tcp"), 17: ("udp6", "udp")}
_LISTENS, _UNCONNECTED = "0A", "07"  # TCP_LISTEN, TCP_CLOSE, in hexadecimal digits
_STATES: Final = {6: _LISTENS, 17: _UNCONNECTED}


def has_program(first: int, count: int = 1) -> bool | None:
    """Whether one of these queues has a program; None: the kernel does not say.

    Packets for a queue without one are dropped, but where the rule lets them pass by it.
    """
    try:
        lines = (_NET / "netfilter" / _QUEUES).read_text().splitlines()
    except FileNotFoundError:  # nobody has asked for a queue yet
        return False if (_NET / "netfilter").is_dir() else None
    except OSError:
        return None
    return any(first <= int(line.split()[0]) < first + count for line in lines if line.strip())


def takes_loopback(interface: str) -> bool:
    """Whether packets that come by an interface may be for 127.0.0.0/8."""
    found = []
    for name in ("all", interface):
        with suppress(OSError):
            found.append((_SETTINGS / name / "route_localnet").read_text().strip())
    return "1" in found


def is_listening(protocol: int, port: int, address: Address | None = None) -> bool | None:
    """Whether a program has a socket for the port at this address of the host, or at any but the loopback's.

    None: the kernel does not say.
    """
    found = None
    for name in _SOCKETS.get(protocol, ())[: 1 if address is not None and address.version == 6 else 2]:
        try:
            lines = (_NET / name).read_text().splitlines()[1:]
        except OSError:
            continue  # there is no IPv6
        found = found or any(_is_for(line.split(), _STATES[protocol], port, address) for line in lines)
    return found


def _is_for(words: list[str], state: str, port: int, address: Address | None) -> bool:
    if len(words) < 4 or words[3] != state or not words[1].endswith(f":{port:04X}"):
        return False
    here = _bound(words[1].partition(":")[0])
    return here.is_unspecified or (here == address if address is not None else not here.is_loopback)


def _bound(digits: str) -> Address:
    """The address of a socket, which /proc writes as 32-bit numbers of this machine."""
    numbers = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
    found = ip_address(struct.pack(f"={len(numbers)}I", *numbers))
    return (found.ipv4_mapped or found) if isinstance(found, IPv6Address) else found
