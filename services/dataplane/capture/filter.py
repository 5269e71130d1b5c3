"""Capture filters: an expression, and the classic BPF program that the kernel runs for it. Pure.

A packet begins with its IP header here. A program that reads behind the packet's end rejects it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final, TypeAlias

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Address, Network
from flannelette.services.core.tunnel import Tunnel

Instruction: TypeAlias = tuple[int, int, int, int]
"""`struct sock_filter` of linux/filter.h: code, jump if true, jump if false, operand."""

_LOAD: Final = {1: 0x30, 2: 0x28, 4: 0x20}
"""By size: the bytes at an offset in the packet."""
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


@dataclass(frozen=True, slots=True)
class Test:
    """A comparison of a part of the packet with a number."""

    loads: tuple[tuple[int, int], ...]
    """Codes and operands that bring the compared value."""
    number: int
    code: int = _IF_EQUAL


@dataclass(frozen=True, slots=True)
class Every:
    """A conjunction: it holds if all parts do."""

    parts: "Sequence[Expression]"


@dataclass(frozen=True, slots=True)
class Some:
    """A disjunction: it holds if at least one part does."""

    parts: "Sequence[Expression]"


Expression: TypeAlias = Test | Every | Some

_Start: TypeAlias = tuple[tuple[int, int], ...]
"""Codes and operands that bring an offset to X; empty: offsets count from the packet's first byte."""


def inner(subnets: Sequence[Network], pod: Address | None, start: _Start = (), offset: int = 0) -> Expression:
    """Packets from or to one of the subnets, and from or to the pod, with the IP header at the offset."""
    return Some(
        [
            Every(
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
        details.append(Some([Test((*start, _load(2, start, at)), port) for at in (0, 2)]))
    if pod is not None and inside >= 0:
        details.append(inner(carried, pod, start, inside))
    protocol = _load(1, (), 9 if version == 4 else 6)
    is_first: Expression = Every([Test((protocol,), tunnel.protocol), *details])
    is_later: Expression
    if version == 4:
        is_later = Every([Test((protocol,), tunnel.protocol), Test((_load(2, (), 6),), 0x1FFF, _IF_ANY_BIT)])
    else:
        is_later = Every([Test((protocol,), _FRAGMENT), Test((_load(1, (), _IPV6_HEADER),), tunnel.protocol)])
    what = Some([is_later, is_first, Test((protocol,), _ICMP[version])])
    return Every([_is_version(version, (), 0), _either_end(_alone(host), (), 0), what])


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
        case Every(parts):
            for part in reversed(parts):
                yes = _append(backwards, part, yes, no)
            return yes
        case Some(parts):
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
    return Some([_is_within(network, start, offset + at) for at in _ADDRESSES[network.version]])


def _is_within(network: Network, start: _Start, offset: int) -> Expression:
    """The address at the offset is one of the network."""
    address, mask, tests = network.network_address.packed, network.netmask.packed, list[Expression]()
    for at in range(0, len(address), 4):
        number, bits = (int.from_bytes(each[at : at + 4]) for each in (address, mask))
        if bits:
            tests.append(Test((*start, _load(4, start, offset + at), (_AND, bits)), number))
    return Every(tests)


def _alone(address: Address) -> Network:
    return ip_network(address)
