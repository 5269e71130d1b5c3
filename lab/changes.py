"""Sees every change of the overlay's kernel objects in a namespace, whoever makes it."""

import asyncio
import re
import socket
import struct
from collections.abc import Iterator
from typing import Final, Self

from flannelette.services.dataplane.settings import ROUTE_PROTOCOL
from flannelette.services.runtime.networks import NAMED_PROTOCOLS
from lab.netns import NetworkNamespace

_GROUPS: Final = 0x4 | 0x40  # RTMGRP_NEIGH (also forwarding entries), RTMGRP_IPV4_ROUTE: rtnetlink(7)
_ROUTE: Final = (24, 25)  # RTM_NEWROUTE, RTM_DELROUTE
_NEIGHBOUR: Final = (28, 29)  # RTM_NEWNEIGH, RTM_DELNEIGH
_HEADER: Final = struct.Struct("=LHHLL")
_ROUTE_PROTOCOL: Final = _HEADER.size + 5  # struct rtmsg
_NEIGHBOUR_STATE: Final = _HEADER.size + 8  # struct ndmsg
_PERMANENT: Final = 0x80
_OURS: Final = (ROUTE_PROTOCOL, *NAMED_PROTOCOLS)


_LOOKS: Final = (
    "ip -d -o link show | grep 'flannel\\|fl-'",
    "ip -o address show | grep -v ' fe80:'",
    "ip route show table all | grep -v ' table local \\|fe80:'",
    "ip neigh show nud permanent",
    "bridge fdb show | grep flannel",
    "iptables-save",
    "ip6tables-save",
)
_COUNTED: Final = re.compile(r"\[\d+:\d+\]|^#.*| tentative", re.M)


def kernel_of(namespace: NetworkNamespace) -> frozenset[str]:
    """Overlay devices, addresses, routes, neighbours, forwarding entries and rules, as tools print them.

    Without link-local IPv6, which comes by itself a while after a device.
    """
    printed = namespace.run("sh", "-c", "; ".join(f"{look} 2>/dev/null" for look in _LOOKS) + "; true")
    return frozenset(_COUNTED.sub("", printed).splitlines())


class ChangeWatch:
    """Counts changes of routes with a protocol of ours, and of permanent neighbours and forwarding entries."""

    def __init__(self, namespace: NetworkNamespace) -> None:
        self.count = 0
        with namespace.inside():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setblocking(False)
        self._socket.bind((0, _GROUPS))
        asyncio.get_running_loop().add_reader(self._socket, self.look)

    def look(self) -> int:
        """The count, with what the kernel has reported until now."""
        try:
            while True:
                self.count += sum(map(_is_ours, _messages(self._socket.recv(1 << 16))))
        except BlockingIOError:
            return self.count
        except OSError:  # ENOBUFS: more than the socket could hold
            self.count += 1
            return self.count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


def _messages(data: bytes) -> Iterator[bytes]:
    while data:
        (length, *_) = _HEADER.unpack_from(data)
        yield data[:length]
        data = data[(length + 3) & ~3 :]


def _is_ours(message: bytes) -> bool:
    _, kind, *_ = _HEADER.unpack_from(message)
    if kind in _ROUTE:
        return message[_ROUTE_PROTOCOL] in _OURS
    return kind in _NEIGHBOUR and bool(message[_NEIGHBOUR_STATE] & _PERMANENT)
