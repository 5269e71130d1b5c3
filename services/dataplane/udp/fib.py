"""The proxy's next hops: what the kernel's own routes through its device say, asked by rtnetlink."""

import socket
import struct
import sys
import time
from typing import Final

from flannelette.services.dataplane.netlink import uapi

_MOST: Final = 1 << 16
"""Destinations that are known at a time, of which a scan has asked for most."""
_QUEUED_SECONDS: Final = 1.0
"""So long a packet may have waited in the device's queue since it was routed there."""


class Fib:
    """Next hops by destination, on one device: the gateway of the kernel's route. Only IPv4.

    `socket` is readable when routes have changed: then call `refresh`. A packet is in the device's queue by the
    routes of a moment ago. A route that is there now is in the kernel's answer before its notification is read, and
    of one that has gone since, the last answer counts.
    """

    def __init__(self, ifindex: int) -> None:
        self._oif = uapi.attribute(uapi.RTA_OIF, ifindex.to_bytes(4, sys.byteorder))
        self._known: dict[bytes, str] = {}
        self._former: dict[bytes, tuple[str, float]] = {}
        """What was known before routes changed, and until when that counts."""
        self._asking = _rtnetlink()
        self.socket = _rtnetlink(1 << uapi.RTNLGRP_IPV4_ROUTE - 1)
        self.socket.setblocking(False)

    def next_hop(self, destination: bytes) -> str | None:
        """Where a packet to this address is sent; None: no route. Raises OSError."""
        try:
            return self._known[destination]
        except KeyError:
            found = self._ask(destination)
        if found is None:
            hop, until = self._former.get(destination, ("", 0.0))
            return hop if time.monotonic() < until else None
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[destination] = found
        return found

    def refresh(self) -> None:
        """Forgets what was known; the kernel is asked again for each destination."""
        while True:
            try:
                while self.socket.recv(1 << 16):
                    pass
            except BlockingIOError:
                break
            except OSError:
                continue  # more news than the queue holds: all is asked anew anyway
        now = time.monotonic()
        self._former = {each: old for each, old in self._former.items() if old[1] > now}
        self._former |= {each: (hop, now + _QUEUED_SECONDS) for each, hop in self._known.items()}
        self._known = {}

    def _ask(self, destination: bytes) -> str | None:
        """The gateway of the kernel's route through the device."""
        body = bytes([socket.AF_INET, 32, *bytes(10)]) + uapi.attribute(uapi.RTA_DST, destination) + self._oif
        self._asking.send(uapi.request(uapi.RTM_GETROUTE, body))
        answer = self._asking.recv(1 << 16)
        if int.from_bytes(answer[4:6], sys.byteorder) != uapi.RTM_NEWROUTE:
            return None
        gateway = dict(uapi.attributes(answer[28:])).get(uapi.RTA_GATEWAY)
        return socket.inet_ntoa(gateway) if gateway else None


def transmits(ifindex: int) -> bool:
    """Whether packets get through a device that is up: of one that was opened a moment ago the kernel drops them.

    It notices the carrier in a task of its own.
    """
    with _rtnetlink() as asking:
        asking.send(uapi.request(uapi.RTM_GETLINK, struct.pack("=BxHiII", socket.AF_UNSPEC, 0, ifindex, 0, 0)))
        answer = asking.recv(1 << 16)
    is_link = int.from_bytes(answer[4:6], sys.byteorder) == uapi.RTM_NEWLINK
    flags = int.from_bytes(answer[24:28], sys.byteorder) if is_link else 0
    return not flags & uapi.IFF_UP or bool(flags & uapi.IFF_RUNNING)


def _rtnetlink(groups: int = 0) -> socket.socket:
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    found.bind((0, groups))
    return found
