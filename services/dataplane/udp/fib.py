"""The proxy's table of next hops: the kernel's own routes through its device, read and followed by rtnetlink."""

import os
import socket
import sys
from collections.abc import Iterator

from services.dataplane.netlink import uapi


class Fib:
    """Next hops by destination: the longest prefix that has a gateway, on one device. Only IPv4.

    `socket` is readable when routes have changed: then call `refresh`.
    """

    def __init__(self, ifindex: int) -> None:
        self._ifindex = ifindex.to_bytes(4, sys.byteorder)
        self._tables: list[tuple[int, dict[int, str]]] = []
        """Shift and next hops by prefix, the longest prefixes first."""
        self._known: dict[bytes, str | None] = {}
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self.socket.bind((0, 1 << uapi.RTNLGRP_IPV4_ROUTE - 1))
        self.socket.setblocking(False)
        self.refresh()

    def next_hop(self, destination: bytes) -> str | None:
        """Where a packet to this address is sent; None: no route."""
        try:
            return self._known[destination]
        except KeyError:
            number = int.from_bytes(destination)
            found = next((hops[number >> s] for s, hops in self._tables if number >> s in hops), None)
            if len(self._known) > 1 << 16:  # of addresses that a scan has asked for
                self._known.clear()
            self._known[destination] = found
            return found

    def refresh(self) -> None:
        """Reads all routes, after what is waiting was thrown away. Raises OSError."""
        while True:
            try:
                while self.socket.recv(1 << 16):
                    pass
            except BlockingIOError:
                break
            except OSError:
                continue  # more news than the queue holds: all is read anyway
        tables: dict[int, dict[int, str]] = {}
        for destination, length, gateway in self._dump():
            shift = 32 - length
            tables.setdefault(shift, {})[int.from_bytes(destination) >> shift] = socket.inet_ntoa(gateway)
        self._tables = sorted(tables.items())
        self._known = {}

    def _dump(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Destination, prefix length and gateway of each route through the device that has a gateway."""
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as dump:
            dump.settimeout(10)
            dump.sendto(uapi.request(uapi.RTM_GETROUTE, bytes([socket.AF_INET, *bytes(11)]), uapi.NLM_F_DUMP), (0, 0))
            while True:
                for message in uapi.messages(dump.recv(1 << 17)):
                    kind = int.from_bytes(message[4:6], sys.byteorder)
                    if kind in (uapi.NLMSG_DONE, uapi.NLMSG_ERROR):
                        if error := uapi.error_in(message, 0):
                            raise OSError(error.error, os.strerror(error.error))
                        return
                    found = dict(uapi.attributes(message[28:]))
                    if uapi.RTA_GATEWAY in found and found.get(uapi.RTA_OIF) == self._ifindex:
                        yield found.get(uapi.RTA_DST, bytes(4)), message[17], found[uapi.RTA_GATEWAY]
