"""Captures packets between this node and a peer: packet sockets with filters in the kernel, read a little at a time,
within limits of time and size. Nothing is decoded.

A filter is an expression, and the classic BPF program that the kernel runs for it. A packet begins with its IP header
there. A program that reads behind the packet's end rejects it.
"""

import asyncio
import ctypes
import socket
import struct
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_network
from itertools import chain, count, repeat
from typing import Final, NamedTuple, TypeAlias

from flannelette.services.core.backend_types import Tunnel
from flannelette.services.core.errors import InvalidInput, NotYet, Unavailable
from flannelette.services.core.family import Address, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.probes.sockets import obstacle_of

Instruction: TypeAlias = tuple[int, int, int, int]
"""`struct sock_filter` of linux/filter.h: code, jump if true, jump if false, operand."""

_LOAD: Final = {1: 0x30, 2: 0x28, 4: 0x20}
"""Instructions that load bytes at an offset in the packet, by the number of bytes."""
_FROM_X: Final = 0x20
"""Added to those: the offset counts from the register X."""
_HEADER_LENGTH_TO_X: Final = 0xB1
_NUMBER_TO_X: Final = 0x01
_AND: Final = 0x54
_IF_EQUAL: Final = 0x15
_IF_ANY_BIT: Final = 0x45
_JUMP: Final = 0x05
_RETURN: Final = 0x06
_REJECT, _ACCEPT = 1, 2
"""Labels. A label is the number of instructions from there to the program's end."""
_FARTHEST: Final = 255

_ADDRESSES: Final = {4: (12, 16), 6: (8, 24)}
"""Offsets of source and destination."""
_ICMP: Final = {4: 1, 6: 58}
_FRAGMENT: Final = 44
_IPV6_HEADER: Final = 40


@frozen
class Test:
    """A comparison of a part of the packet with a number."""

    loads: tuple[tuple[int, int], ...]
    """Codes and operands that bring the compared value."""
    number: int
    code: int = _IF_EQUAL


@frozen
class AllOf:
    """A conjunction: it holds if all parts do."""

    parts: "Sequence[Expression]"


@frozen
class AnyOf:
    """A disjunction: it holds if at least one part does."""

    parts: "Sequence[Expression]"


Expression: TypeAlias = Test | AllOf | AnyOf

_Start: TypeAlias = tuple[tuple[int, int], ...]
"""Codes and operands that bring an offset to X; empty: offsets count from the packet's first byte."""


def inner(subnets: Sequence[Network], pod: Address | None, start: _Start = (), offset: int = 0) -> Expression:
    """Packets from or to one of the subnets, and from or to the pod, with the IP header at the offset."""
    return AnyOf(
        [
            AllOf(
                [
                    _is_version(subnet.version, start, offset),
                    _either_end(subnet, start, offset),
                    *([_either_end(_alone(pod), start, offset)] if pod is not None else ()),
                ]
            )
            for subnet in subnets
            if pod is None or pod.version == subnet.version
        ]
    )


def outer(tunnel: Tunnel, host: Address, carried: Sequence[Network], pod: Address | None, inside: int) -> Expression:
    """Packets of the tunnel from or to a host, and ICMP of that, with its errors.

    With a pod, those that carry packets of it; the IP header of the carried packet is `inside` bytes behind the outer
    one, -1: what is carried cannot be read. Of a packet in fragments, only the first one shows what it carries.
    """
    version, details = host.version, list[Expression]()
    start: _Start = ((_HEADER_LENGTH_TO_X, 0),) if version == 4 else ((_NUMBER_TO_X, _IPV6_HEADER),)
    if port := tunnel.port_of(version):
        details.append(AnyOf([Test((*start, _load(2, start, at)), port) for at in (0, 2)]))
    if pod is not None and inside >= 0:
        details.append(inner(carried, pod, start, inside))
    protocol = _load(1, (), 9 if version == 4 else 6)
    is_first: Expression = AllOf([Test((protocol,), tunnel.protocol), *details])
    is_later: Expression
    if version == 4:
        is_later = AllOf([Test((protocol,), tunnel.protocol), Test((_load(2, (), 6),), 0x1FFF, _IF_ANY_BIT)])
    else:
        is_later = AllOf([Test((protocol,), _FRAGMENT), Test((_load(1, (), _IPV6_HEADER),), tunnel.protocol)])
    what = AnyOf([is_later, is_first, Test((protocol,), _ICMP[version])])
    return AllOf([_is_version(version, (), 0), _either_end(_alone(host), (), 0), what])


def program(expression: Expression, snap_length: int) -> list[Instruction]:
    """What returns so many bytes of a packet for which the expression holds, 0 of others. Raises InvalidInput."""
    backwards: list[Instruction] = [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, snap_length)]
    entry = _append(backwards, expression, _ACCEPT, _REJECT)
    if entry != len(backwards):
        backwards.append((_JUMP, 0, 0, len(backwards) - entry))
    return backwards[::-1]


def _append(backwards: list[Instruction], expression: Expression, yes: int, no: int) -> int:
    """The label of the expression, which goes on at one of two labels."""
    match expression:
        case AllOf(parts):
            for part in reversed(parts):
                yes = _append(backwards, part, yes, no)
            return yes
        case AnyOf(parts):
            for part in reversed(parts):
                no = _append(backwards, part, yes, no)
            return no
        case Test(loads, number, code):
            at = len(backwards)
            if at - min(yes, no) > _FARTHEST:
                raise InvalidInput("the peer has too many subnets for one filter: name a lease, or a pod")
            backwards.append((code, at - yes, at - no, number))
            backwards.extend((load, 0, 0, operand) for load, operand in reversed(loads))
            return len(backwards)


def _load(size: int, start: _Start, offset: int) -> tuple[int, int]:
    return _LOAD[size] + (_FROM_X if start else 0), offset


def _is_version(version: int, start: _Start, offset: int) -> Expression:
    return Test((*start, _load(1, start, offset), (_AND, 0xF0)), version << 4)


def _either_end(network: Network, start: _Start, offset: int) -> Expression:
    return AnyOf([_is_within(network, start, offset + at) for at in _ADDRESSES[network.version]])


def _is_within(network: Network, start: _Start, offset: int) -> Expression:
    """The address at the offset is one of the network."""
    address, mask, tests = network.network_address.packed, network.netmask.packed, list[Expression]()
    for at in range(0, len(address), 4):
        number, bits = (int.from_bytes(each[at : at + 4]) for each in (address, mask))
        if bits:
            tests.append(Test((*start, _load(4, start, offset + at), (_AND, bits)), number))
    return AllOf(tests)


def _alone(address: Address) -> Network:
    return ip_network(address)


_PAUSE_SECONDS: Final = 0.02
_PACKETS_AT_ONCE: Final = 256
"""Packets that are read after one pause at most. The loop has other work: what comes faster is lost to the capture,
and counted."""
_BYTES_AT_ONCE: Final = 1 << 20
_BUFFER: Final = 4 << 20
"""Bytes that the kernel keeps meanwhile, of each interface."""
_GRACE_SECONDS: Final = 2.0
"""Seconds for what is in the kernel's buffers at the end, and for a caller that does not read."""
_ALL: Final = 0x0003
"""ETH_P_ALL: packets of every protocol, also those that this host sends."""
_ATTACH_FILTER: Final = 26
_BUFFER_FORCE: Final = 33
_TIMESTAMP: Final = 35
"""SO_TIMESTAMPNS: each packet comes with the time at which it was seen, in nanoseconds."""
_TIMESPEC: Final = struct.Struct("@qq")
_PACKET: Final = 263
"""SOL_PACKET: the level of a packet socket's own options."""
_STATISTICS: Final = 6
_AUXDATA: Final = 8
"""PACKET_AUXDATA: each packet comes with the length that it had before the filter cut it."""
_AUXDATA_FIELDS: Final = struct.Struct("=IIIHHHH")
_NOTHING: Final = program(AnyOf(()), 0)
"""A program that accepts no packet."""
_ANCILLARY: Final = socket.CMSG_SPACE(_TIMESPEC.size) + socket.CMSG_SPACE(_AUXDATA_FIELDS.size)


@frozen
class Limits:
    """How much is captured at most."""

    seconds: float
    bytes: int
    packets: int
    """Number of packets of all interfaces; 0: any number."""
    snap_length: int
    """Bytes of each packet that are kept."""


class Packet(NamedTuple):
    """One packet, from its IP header on."""

    nanoseconds: int
    """When the packet was seen, in Unix time."""
    interface: int
    """Place among the capture's interfaces, from 0."""
    data: bytes
    length: int
    protocol: int
    packet_type: int
    hardware_type: int
    link_address: bytes


class PacketBatch(NamedTuple):
    """What has come since the one before."""

    packets: Sequence[Packet]
    dropped: int
    """Packets lost since the start."""
    ended: str = ""
    """The limit that has ended the capture; empty: it goes on."""


class Capture:
    """Open sockets of some interfaces."""

    def __init__(self, filters: Mapping[str, Expression], limits: Limits) -> None:
        """Interfaces by name. One that is not there is left out. Raises NotYet, InvalidInput."""
        self.dropped = 0
        """Packets that were lost to it."""
        self.count = 0
        """Packets that were captured so far."""
        self.limits = limits
        self._bytes = 0
        self._accepted = 0
        """Packets that the filters have accepted, lost or not."""
        self._early: list[Packet] = []
        """Packets that came while sockets were read: a socket that was read before may have older ones."""
        self._is_stopped = False
        self._sockets: list[socket.socket] = []
        self._buffer = bytearray(limits.snap_length)
        present = {name: index for index, name in socket.if_nameindex()}
        self.interfaces = [(name, present[name]) for name in filters if name in present]
        """Names and kernel's numbers."""
        programs = [program(filters[name], limits.snap_length) for name, _ in self.interfaces]
        try:
            self._sockets.extend(_open(name) for name, _ in self.interfaces)
            for each, instructions in zip(self._sockets, programs, strict=True):
                attach(each, instructions)  # all at once: a packet that one of them has and no other looks lost
        except BaseException:
            self.close()
            raise
        if not self._sockets:
            raise NotYet(f"there is no interface {' or '.join(filters)}")

    @property
    def is_open(self) -> bool:
        """Whether it still has its sockets."""
        return bool(self._sockets)

    def stop(self) -> None:
        """Ends the capture of new packets; those captured before can still be read."""
        self._is_stopped = True
        for each in self._sockets:
            attach(each, _NOTHING)

    def give_up(self) -> None:
        """Closes it before everything was read, which counts as lost."""
        if self.is_open:
            self._count_drops()
            self.dropped = self._accepted - self.count
            self._early.clear()
            self.close()

    def close(self) -> None:
        """Closes the sockets, in a thread: the kernel takes 20 ms for each."""
        while self._sockets:
            asyncio.get_running_loop().run_in_executor(None, self._sockets.pop().close)

    def read(self) -> PacketBatch:
        """What is there, up to so much at once, in the order in which it came."""
        began, found, ended = time.time_ns(), list[Packet](), ""
        come, self._early = self._early, []
        most, room = _PACKETS_AT_ONCE - len(come), _BYTES_AT_ONCE - sum(len(each.data) for each in come)
        for packet in chain.from_iterable(map(self._packets, count(), self._sockets, repeat(most), repeat(room))):
            (come if packet.nanoseconds < began or self._is_stopped else self._early).append(packet)
        for packet in sorted(come, key=lambda packet: packet.nanoseconds):
            if self._bytes + len(packet.data) > self.limits.bytes:
                ended = f"the limit of bytes ({self.limits.bytes})"
                break
            found.append(packet)
            self.count += 1
            self._bytes += len(packet.data)
            if self.count == self.limits.packets:
                ended = f"the limit of packets ({self.limits.packets})"
                break
        self._count_drops()
        return PacketBatch(found, self.dropped, ended)

    def _count_drops(self) -> None:
        for each in self._sockets:
            accepted, drops = struct.unpack("=II", each.getsockopt(_PACKET, _STATISTICS, 8))  # since the last time
            self._accepted += accepted
            self.dropped += drops

    def _packets(self, number: int, source: socket.socket, most: int, room: int) -> Iterator[Packet]:
        """Yields packets of one of the sockets, which share so many packets and bytes."""
        room //= len(self._sockets)
        for _ in range(most // len(self._sockets)):
            if room <= 0:
                return
            try:
                size, ancillary, _, address = source.recvmsg_into([self._buffer], _ANCILLARY)
            except OSError:  # nothing more, or the interface went down
                return
            nanoseconds = length = 0
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMP):
                    seconds, rest = _TIMESPEC.unpack(data)
                    nanoseconds = seconds * 1_000_000_000 + rest
                elif (level, kind) == (_PACKET, _AUXDATA):
                    length = _AUXDATA_FIELDS.unpack(data)[1]
            _, protocol, packet_type, hardware_type, link_address = address
            data = bytes(memoryview(self._buffer)[:size])
            room -= size
            yield Packet(
                nanoseconds, number, data, length, protocol, packet_type, hardware_type, link_address
            )  # fmt: skip


async def batches(capture: Capture, stopping: asyncio.Event) -> AsyncGenerator[PacketBatch, None]:
    """What is captured, until a limit is reached; closes the capture. Raises Unavailable when we stop."""
    loop, limits = asyncio.get_running_loop(), capture.limits
    ends_at = loop.time() + limits.seconds
    last_moment = loop.call_later(limits.seconds + _GRACE_SECONDS, capture.give_up)
    is_over = False
    try:
        while True:
            if not is_over and loop.time() >= ends_at:
                is_over = True
                capture.stop()
            batch = capture.read()
            if is_over and not batch.packets:
                batch = batch._replace(ended=f"the limit of seconds ({limits.seconds:g})")
            if batch.packets or batch.ended:
                yield batch
            if batch.ended:
                return
            if stopping.is_set():
                raise Unavailable("the dataplane service is stopping, and the capture ends")
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        last_moment.cancel()
        capture.close()


def _open(name: str) -> socket.socket:
    """Opens a socket on one interface, which may take milliseconds; it receives nothing before it has another filter.
    Raises NotYet.
    """
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    try:
        made = socket.socket(socket.AF_PACKET, kind, 0)  # no protocol: nothing comes before the filter
    except PermissionError as error:
        raise NotYet(f"no packet can be captured: {obstacle_of(error)}") from None
    try:
        attach(made, _NOTHING)
        made.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)
        made.setsockopt(_PACKET, _AUXDATA, 1)
        with suppress(PermissionError):
            made.setsockopt(socket.SOL_SOCKET, _BUFFER_FORCE, _BUFFER)
        made.bind((name, _ALL))
    except BaseException:
        made.close()
        raise
    return made


def attach(to: socket.socket, instructions: Sequence[Instruction]) -> None:
    """Has the kernel run the program for each message that the socket gets, in place of an earlier one."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    to.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("@HP", len(instructions), ctypes.addressof(code)))
