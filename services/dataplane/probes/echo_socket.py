"""Raw sockets for ICMP echo, one for each address family. They need CAP_NET_RAW."""

import asyncio
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from flannelette.services.core.family import IPV4, IPV6, Address, Family, family_of
from flannelette.services.dataplane.probes import echo
from flannelette.services.dataplane.probes.echo import Reply

_PROTOCOL: Final = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
_SOL_RAW: Final = 255
_FILTER: Final = 1
"""ICMP_FILTER and ICMP6_FILTER: which types the kernel keeps from the socket."""
NEVER_FRAGMENT: Final = {4: (socket.IPPROTO_IP, 10, 3), 6: (socket.IPPROTO_IPV6, 23, 3)}
"""IP_MTU_DISCOVER, IPV6_MTU_DISCOVER: IP_PMTUDISC_PROBE sends whatever the remembered path MTU is."""
_TIMESTAMP: Final = 35
"""SO_TIMESTAMPNS: the kernel says when a packet came, so that the event loop's delay does not count."""
_TIMESPEC: Final = struct.Struct("@qq")
_ANCILLARY: Final = socket.CMSG_SPACE(_TIMESPEC.size)
_AT_ONCE: Final = 64
"""Replies that one wake-up reads."""
_LONGEST: Final = 65_536
_SOURCE: Final = {4: (socket.IPPROTO_IP, 8), 6: (socket.IPPROTO_IPV6, 50)}
"""IP_PKTINFO and IPV6_PKTINFO: which address a packet comes from."""


def obstacle_of(error: OSError) -> str:
    """Why no probe can be sent, after EchoSockets have raised it."""
    return f"no raw socket ({error.strerror}): give this service CAP_NET_RAW"


class EchoSockets:
    """Sends echo requests, and calls back with the replies to them. Families that the kernel lacks are left out."""

    def __init__(self, take: Callable[[Reply, float], None]) -> None:
        """`take` is called in the event loop with each reply and the Unix time of its arrival.

        Raises PermissionError without CAP_NET_RAW.
        """
        self._take = take
        self._identifier = secrets.randbits(16)
        self._token = secrets.randbits(64)
        self._sockets: dict[Family, socket.socket] = {}
        try:
            self._sockets[IPV4] = open_echo_socket(IPV4, echo.REPLY[4])
            with suppress(OSError):  # a kernel without IPv6
                self._sockets[IPV6] = open_echo_socket(IPV6, echo.REPLY[6])
            for family, each in self._sockets.items():
                each.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)
                each.setsockopt(*NEVER_FRAGMENT[family.version])
        except BaseException:
            self.close()
            raise
        loop = asyncio.get_running_loop()
        for family, each in self._sockets.items():
            loop.add_reader(each, self._read, family, each)

    def send(self, address: Address, sequence: int, size: int, source: Address | None = None) -> None:
        """Sends a request of `size` bytes with its IP header (0: a small one), from an address of this node.

        None: the kernel chooses one. Raises OSError.
        """
        family = family_of(address)
        if family not in self._sockets:
            raise OSError(f"this kernel has no {family}")
        packet = echo.request(family, self._identifier, self._token, sequence, size)
        ancillary = [(*_SOURCE[family.version], _packet_info(source))] if source else []
        self._sockets[family].sendmsg([packet], ancillary, socket.MSG_DONTWAIT, (str(address), 0))

    def close(self) -> None:
        """Closes the sockets of both families."""
        for each in self._sockets.values():
            with suppress(RuntimeError):  # no loop
                asyncio.get_running_loop().remove_reader(each)
            each.close()
        self._sockets.clear()

    def _read(self, family: Family, source: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                packet, ancillary, _, _ = source.recvmsg(_LONGEST, _ANCILLARY, socket.MSG_DONTWAIT)
            except OSError:  # nothing more, or an ICMP error of a request; a lost one shows by itself
                return
            found = echo.reply(family, packet, self._identifier, self._token)
            if found is not None:
                self._take(found, _time_of(ancillary))


def _packet_info(source: Address) -> bytes:
    """`in_pktinfo` or `in6_pktinfo` of any interface."""
    return struct.pack("=i4s4x", 0, source.packed) if source.version == 4 else struct.pack("=16si", source.packed, 0)


def _time_of(ancillary: Sequence[tuple[int, int, bytes]]) -> float:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP) and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return float(seconds + nanoseconds / 1e9)
    return time.time()


def open_echo_socket(family: Family, kept: int) -> socket.socket:
    """A raw socket that does not block, and receives ICMP messages of one type only. Raises OSError."""
    made = socket.socket(
        family.af, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _PROTOCOL[family.version]
    )
    try:
        if family is IPV4:
            made.setsockopt(_SOL_RAW, _FILTER, struct.pack("=I", 0xFFFFFFFF & ~(1 << kept)))
        else:
            blocked = [0xFFFFFFFF] * 8
            blocked[kept // 32] &= ~(1 << kept % 32)
            made.setsockopt(socket.IPPROTO_ICMPV6, _FILTER, struct.pack("=8I", *blocked))
    except BaseException:
        made.close()
        raise
    return made
