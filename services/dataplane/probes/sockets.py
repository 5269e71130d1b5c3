"""The packets of probes: ICMP echo (RFC 792, RFC 4443) by raw sockets, which need CAP_NET_RAW, and UDP datagrams to a
closed port of peers.
"""

import asyncio
import secrets
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import ECONNREFUSED
from functools import partial
from ipaddress import ip_address
from typing import Final, NamedTuple

from flannelette.services.core.family import IPV4, IPV6, Address, Family, family_of
from flannelette.services.dataplane.udp.packets import checksum

_HEADER: Final = struct.Struct("!BBHHH")
_TOKEN: Final = struct.Struct("!Q")
REQUEST: Final = {4: 8, 6: 128}
"""ICMP types by IP version."""
REPLY: Final = {4: 0, 6: 129}
_IP_HEADER: Final = {4: 20, 6: 40}
SMALLEST: Final = _HEADER.size + _TOKEN.size
"""Bytes of the shortest request, without the IP header."""


class Echo(NamedTuple):
    """An echo request or reply. The token is its sender's; a host that masquerades may change the identifier."""

    kind: int
    """ICMP type, as in REQUEST and REPLY."""
    identifier: int
    sequence: int
    token: int
    size: int
    """Bytes of the IP packet."""


class Reply(NamedTuple):
    """An echo reply to one of our requests."""

    sequence: int
    size: int
    """Bytes of the IP packet."""


def request(family: Family, identifier: int, token: int, sequence: int, size: int) -> bytes:
    """An echo request that makes an IP packet of `size` bytes, or the smallest that there is.

    The checksum is there for IPv4 only: of ICMPv6 the kernel computes it.
    """
    filling = bytes(max(0, size - _IP_HEADER[family.version] - SMALLEST))
    message = _HEADER.pack(REQUEST[family.version], 0, 0, identifier, sequence) + _TOKEN.pack(token) + filling
    return message[:2] + checksum(message) + message[4:] if family is IPV4 else message


def echo_in(family: Family, packet: bytes) -> Echo | None:
    """What a raw socket has received; None: not a request as `request` makes it, nor a reply to one.

    A raw socket of IPv4 gives the IP header too, one of IPv6 does not.
    """
    start = (packet[0] & 0x0F) * 4 if family is IPV4 and packet else 0
    end = start + SMALLEST
    if len(packet) < end or any(packet[end:]):
        return None
    kind, code, _, identifier, sequence = _HEADER.unpack_from(packet, start)
    if code or kind not in (REQUEST[family.version], REPLY[family.version]):
        return None
    (token,) = _TOKEN.unpack_from(packet, start + _HEADER.size)
    size = len(packet) + (0 if family is IPV4 else _IP_HEADER[family.version])
    return Echo(kind, identifier, sequence, token, size)


def reply(family: Family, packet: bytes, identifier: int, token: int) -> Reply | None:
    """Returns what `echo_in` finds, if it is a reply to a request with these numbers."""
    found = echo_in(family, packet)
    if found is None or found[:2] != (REPLY[family.version], identifier) or found.token != token:
        return None
    return Reply(found.sequence, found.size)


TOO_LARGE: Final = {4: 3, 6: 2}
"""ICMP types by IP version, of which a router tells that a packet was too large; in IPv4 with code 4."""


def too_large_in(family: Family, packet: bytes) -> tuple[Address, int] | None:
    """The destination of a packet that was too large, and the bytes that its way carries; None: it is none such.

    Anybody can send it, about any address.
    """
    version = family.version
    start = (packet[0] & 0x0F) * 4 if family is IPV4 and packet else 0
    inside = start + _HEADER.size
    if len(packet) < inside + _IP_HEADER[version]:
        return None
    kind, code, _, high, low = _HEADER.unpack_from(packet, start)
    if (kind, code) != ((3, 4) if version == 4 else (2, 0)):
        return None
    length = 4 if version == 4 else 16
    end = inside + _IP_HEADER[version]
    return ip_address(packet[end - length : end]), low if version == 4 else high << 16 | low


def round_trip_of(sent: float, arrived: float, elapsed: float) -> float:
    """Seconds between two times of the wall clock, or `elapsed` if that clock was stepped between.

    `elapsed` is what the monotonic clock says when the reply is read: never less than the round trip.
    """
    return arrived - sent if 0 <= arrived - sent <= elapsed else elapsed


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

    def __init__(
        self, take: Callable[[Reply, float], None], hear: Callable[[Address, int], None] | None = None
    ) -> None:
        """`take` is called in the event loop with each reply and the Unix time of its arrival, and `hear` with what
        routers tell of packets that were too large.

        Raises PermissionError without CAP_NET_RAW.
        """
        self._take, self._hear = take, hear
        self._identifier = secrets.randbits(16)
        self._token = secrets.randbits(64)
        self._sockets: dict[Family, socket.socket] = {}
        try:
            self._sockets[IPV4] = open_echo_socket(IPV4, *self._kept(4))
            with suppress(OSError):  # a kernel without IPv6
                self._sockets[IPV6] = open_echo_socket(IPV6, *self._kept(6))
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
        packet = request(family, self._identifier, self._token, sequence, size)
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
            found = reply(family, packet, self._identifier, self._token)
            if found is not None:
                self._take(found, _time_of(ancillary))
            elif self._hear is not None and (told := too_large_in(family, packet)) is not None:
                self._hear(*told)

    def _kept(self, version: int) -> tuple[int, ...]:
        return (REPLY[version],) if self._hear is None else (REPLY[version], TOO_LARGE[version])


def _packet_info(source: Address) -> bytes:
    """`in_pktinfo` or `in6_pktinfo` of any interface."""
    return struct.pack("=i4s4x", 0, source.packed) if source.version == 4 else struct.pack("=16si", source.packed, 0)


def _time_of(ancillary: Sequence[tuple[int, int, bytes]]) -> float:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP) and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            return float(seconds + nanoseconds / 1e9)
    return time.time()


def open_echo_socket(family: Family, *kept: int) -> socket.socket:
    """A raw socket that does not block, and receives ICMP messages of these types only. Raises OSError."""
    made = socket.socket(
        family.af, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _PROTOCOL[family.version]
    )
    try:
        if family is IPV4:
            made.setsockopt(_SOL_RAW, _FILTER, struct.pack("=I", 0xFFFFFFFF & ~sum(1 << each for each in kept)))
        else:
            blocked = [0xFFFFFFFF] * 8
            for each in kept:
                blocked[each // 32] &= ~(1 << each % 32)
            made.setsockopt(socket.IPPROTO_ICMPV6, _FILTER, struct.pack("=8I", *blocked))
    except BaseException:
        made.close()
        raise
    return made


TIMEOUT_SECONDS: Final = 1.0
"""A reply that takes longer counts as lost."""
PORT: Final = 33_434
"""The first one of traceroute: hardly anything listens there."""
_HEADERS: Final = {4: 28, 6: 48}
"""Bytes of the IP and UDP headers."""


class Datagrams:
    """Sends datagrams, and calls back with those to which the peer has answered that the port is closed."""

    def __init__(self, take: Callable[[Reply, float], None]) -> None:
        self._take = take
        self._sockets: dict[int, socket.socket] = {}

    def send(
        self, address: Address, sequence: int, size: int, *, is_offloaded: bool, source: Address | None = None
    ) -> None:
        """Sends one of `size` bytes with its headers, or of one byte: it may not be fragmented. Raises OSError.

        `source`: an address of this host; None: the kernel chooses one.

        Of a datagram that is written in two parts the kernel computes the checksum itself, whatever the device can.
        """
        family = family_of(address)
        made = socket.socket(family.af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            made.setsockopt(*NEVER_FRAGMENT[family.version])
            if source is not None:
                made.bind((str(source), 0))
            made.connect((str(address), PORT))
            content = bytes(max(size - _HEADERS[family.version], 1))
            if not is_offloaded:
                made.send(content[:1], socket.MSG_MORE)
                content = content[1:]
            made.send(content)
        except BaseException:
            made.close()
            raise
        self._sockets[sequence] = made
        asyncio.get_running_loop().add_reader(made, partial(self._read, sequence, size))

    def forget(self, sequence: int) -> None:
        """Waits no longer for an answer to this one."""
        if (known := self._sockets.pop(sequence, None)) is not None:
            asyncio.get_running_loop().remove_reader(known)
            known.close()

    def close(self) -> None:
        """Closes the sockets of all datagrams."""
        for sequence in tuple(self._sockets):
            self.forget(sequence)

    def _read(self, sequence: int, size: int) -> None:
        """A datagram that came instead is no answer: something listens there."""
        is_refused = self._sockets[sequence].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == ECONNREFUSED
        self.forget(sequence)
        if is_refused:
            self._take(Reply(sequence, size), time.time())
