"""Connections that the kernel tracks, by netlink: what has become of those that a rule gives another destination."""

import socket
import struct
from collections.abc import Iterable
from contextlib import closing, suppress
from ipaddress import ip_address
from itertools import islice
from typing import Final, NamedTuple

from flannelette.services.core.family import Address, Network
from flannelette.services.runtime.os.netlink import (
    DUMP,
    REQUEST,
    attribute,
    attributes,
    exchange,
    message,
    open_netlink,
)

_NETFILTER, _GET = 12, 0x101  # NETLINK_NETFILTER; NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
_HEADER: Final = struct.Struct("=BBH")  # struct nfgenmsg
_ORIGINAL, _REPLY, _STATUS, _FILTER = 1, 2, 3, 25  # CTA_
_IP, _PROTOCOL = 1, 2  # CTA_TUPLE_
_ADDRESSES: Final = {4: (1, 2), 6: (3, 4)}  # CTA_IP_
_NUMBER, _SOURCE_PORT = 1, 2  # CTA_PROTO_
_OF_ORIGINAL, _OF_REPLY, _BY_SOURCE = 1, 2, 1  # CTA_FILTER_
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


def connections_to(given: Iterable[Network]) -> list[Connection]:
    """The connections that a rule has sent to these addresses; none: there are none, or the kernel does not say."""
    found = list[Connection]()
    for network in given:
        version = network.version
        body = _HEADER.pack(socket.AF_INET if version == 4 else socket.AF_INET6, 0, 0)
        if network.prefixlen == network.max_prefixlen:  # a kernel before 5.8 tells others, too
            source = attribute(_ADDRESSES[version][0], network.network_address.packed)
            body += attribute(_REPLY, attribute(_IP, source, nested=True), nested=True)
            flags = attribute(_OF_ORIGINAL, bytes(4)) + attribute(_OF_REPLY, struct.pack("=I", _BY_SOURCE))
            body += attribute(_FILTER, flags, nested=True)
        with suppress(OSError), closing(open_netlink(_NETFILTER)) as kernel:
            for _, content in islice(exchange(kernel, message(_GET, body, REQUEST | DUMP)), _MOST):
                each = _read(version, attributes(content[_HEADER.size :]))
                if each is not None and each.answering in network and each.answering != each.destination:
                    found.append(each)
    return found


def _read(version: int, values: dict[int, bytes]) -> Connection | None:
    first, answer = (attributes(values.get(way, b"")) for way in (_ORIGINAL, _REPLY))
    found = [attributes(each.get(_IP, b"")).get(place) for each in (first, answer) for place in _ADDRESSES[version]]
    about, status = attributes(answer.get(_PROTOCOL, b"")), int.from_bytes(values.get(_STATUS, b""), "big")
    source, destination, answering, _ = found
    if source is None or destination is None or answering is None:
        return None
    protocol, port = (int.from_bytes(about.get(each, b""), "big") for each in (_NUMBER, _SOURCE_PORT))
    is_answered = bool(status & (_IS_ASSURED if protocol == _TCP else _IS_ANSWERED))  # a refusal is an answer, too
    ends = ip_address(source), ip_address(destination), ip_address(answering)
    return Connection(*ends, protocol, port, is_answered)
