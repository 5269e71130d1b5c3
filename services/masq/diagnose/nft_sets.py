"""Elements of nftables' sets and verdict maps, as conditions of the model. Pure."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network, summarize_address_range
from typing import Final

from flannelette.services.masq.diagnose.verdict import (
    Condition,
    Flow,
    Match,
    Test,
    of_connection,
    of_owner,
    tracked_only,
)
from flannelette.services.runtime.os.netlink import attributes, text

MOST_ELEMENTS: Final = 200
"""Largest number of elements of a set that is read; about a larger one the kernel is asked."""
RTN_LOCAL: Final = 2
_RTN_UNICAST, _RTN_MULTICAST = 1, 5
_KEY, _DATA, _FLAGS, _KEY_END = 1, 2, 3, 10  # NFTA_SET_ELEM_
_EXPIRATION: Final = 5  # NFTA_SET_ELEM_EXPIRATION
_END, _CATCH_ALL = 1, 2  # NFT_SET_ELEM_
_VALUE, _VERDICT = 1, 2  # NFTA_DATA_
EVERY: Final = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
_HOST_ORDER: Final = frozenset(("mark", "connection mark", "state", "status", "fib type", "time", "hour"))
_OF_CONNECTION: Final = frozenset(("connection mark", "direction", "status"))
_NUMBERS: Final = frozenset(
    (
        "source port", "icmp type", "length", "udp length", "mac", "time", "hour", "day", "direction", "tos",
        "version", "ethertype", "kind", "arp operation", "arp mac",
        "ttl",
    )
)  # fmt: skip
"""Fields of which an element says a range of numbers."""
_SIZES: Final = {
    "port": (2,),
    "source port": (2,),
    "protocol": (1,),
    "source": (4, 16),
    "destination": (4, 16),
    "state": (4,),
}


@dataclass(frozen=True, slots=True)
class Part:
    """What some bytes of a register are."""

    what: str
    """`source`, `port`, `state`, ...; `padding`; empty: nothing that is understood."""
    size: int
    is_swapped: bool = False
    """The bytes are in another order than the kernel has them."""
    connection: str = ""
    """Whether it is of the connection's first packets (`original`) or of answers (`reply`); empty: of this packet."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a set, or of a map of verdicts."""

    first: bytes
    """The least of its values; empty: it stands for all that others do not."""
    last: bytes
    verdict: Mapping[int, bytes]
    """NFTA_VERDICT_..., of a map."""
    data: bytes = b""
    """The content of registers, of any other map."""


def elements(dump: Iterable[Mapping[int, bytes]]) -> list[Element]:
    """The elements of a set, from their attributes: those of intervals are a beginning and an end each."""
    read = []
    for values in dump:
        flags = int.from_bytes(values.get(_FLAGS, b""), "big")
        key, end = (attributes(values.get(name, b"")).get(_VALUE, b"") for name in (_KEY, _KEY_END))
        data = attributes(values.get(_DATA, b""))
        said = attributes(data.get(_VERDICT, b"")), data.get(_VALUE, b"")
        read.append((bool(flags & _CATCH_ALL), key, not flags & _END, end, said))
    read.sort(key=lambda each: each[:3])
    has_intervals = not all(begins for _, _, begins, _, _ in read)
    found = []
    for number, (_, key, begins, end, said) in enumerate(read):
        if begins and key and has_intervals:
            after = read[number + 1][1] if number + 1 < len(read) else b""
            end = _before(after) if after else b"\xff" * len(key)
        if begins:
            found.append(Element(key, end or key, *said))
    return found


def has_timeouts(dump: Iterable[Mapping[int, bytes]]) -> bool:
    """Whether elements of the set go by themselves."""
    return any(_EXPIRATION in values for values in dump)


def condition_of_element(parts: Sequence[Part], element: Element) -> Condition:
    """Condition that these parts have the values of an element."""
    if not element.first:
        return Condition()
    if sum(part.size for part in parts) < len(element.first) or len(element.first) != len(element.last):
        return Condition(unknown=True)
    each, place = [], 0
    for part in parts:
        size = part.size if len(parts) > 1 else len(element.first)
        first, last = (end[place : place + size] for end in (element.first, element.last))
        place += size
        if part.what != "padding" and first:
            each.append(of_part(part, Condition(one_of=tuple(_conditions(part, first, last)))))
    return each[0] if len(each) == 1 else Condition(each=tuple(each))


def of_part(part: Part, condition: Condition) -> Condition:
    """The condition on what a part is of."""
    if part.connection:
        return of_connection(condition, is_answer=part.connection == "reply")
    return tracked_only(condition) if part.what in _OF_CONNECTION else condition


def integer(part: Part, value: bytes) -> int:
    """The number that a value of a part is, in the byte order that the kernel has it in."""
    is_host = (part.what in _HOST_ORDER or (part.what == "length" and len(value) == 4)) is not part.is_swapped
    return int.from_bytes(value, sys.byteorder if is_host else "big")


def condition_of_state(number: int) -> Condition:
    """Condition that connection tracking says this of a packet, which has one state: never two together."""
    return Condition(states=number) if number.bit_count() == 1 else Condition(always=False)


def condition_of_type(number: int) -> Condition:
    """Condition that the destination is of a type of addresses, RTN_...; none is a broadcast's, or refused."""
    if number == _RTN_MULTICAST:
        return Condition(asks=lambda flow: Match.YES if flow.is_multicast else Match.NO)
    is_asked = number in (_RTN_UNICAST, RTN_LOCAL)
    return Condition(is_for_us=number == RTN_LOCAL) if is_asked else Condition(always=False)


def key_of(parts: Sequence[Part], flow: Flow) -> bytes | None:
    """Content of the registers for a packet of the flow, if that is one value; None: unknown."""
    key = b""
    for part in parts:
        end = dict(zip(("source", "destination"), flow.ends, strict=True)).get(part.what)
        number = flow.number(part.what)
        if part.what == "padding":
            key += bytes(part.size)
        elif end is not None and end.prefixlen == end.max_prefixlen and part.size == len(end.network_address.packed):
            key += end.network_address.packed
        elif number is not None and not number.unknown and part.what in ("port", "source port", "protocol"):
            key += number.value.to_bytes(part.size, "big")
        else:
            return None
    return key


def word_of(parts: Sequence[Part], element: Element) -> str:
    """Writes an element as nft does, such as `10.0.0.1-10.0.0.9 . 80`."""
    if not element.first:
        return "*"
    words, place = [], 0
    for part in parts or (Part("", len(element.first)),):
        size = part.size if len(parts) > 1 else len(element.first)
        first, last = (end[place : place + size] for end in (element.first, element.last))
        ends = dict.fromkeys((first, last))
        place += size
        if part.what in ("incoming", "outgoing"):
            words.append(_interface(first, last).replace("+", "*") or "...")
        elif part.what != "padding":
            words.append("-".join(dict.fromkeys(_word(part.what, value) for value in ends)))
    return " . ".join(words)


def _word(what: str, value: bytes) -> str:
    if what in ("source", "destination") and len(value) in _SIZES[what]:
        return str(ip_address(value))
    if what in ("port", "source port", "protocol"):
        return str(int.from_bytes(value, "big"))
    return "..."


def _conditions(part: Part, first: bytes, last: bytes) -> Iterator[Condition]:
    what = part.what
    if len(first) not in _SIZES.get(what, (len(first),)) or first > last:
        yield Condition(unknown=True)
    elif what == "port":
        yield Condition(ports=(int.from_bytes(first, "big"), int.from_bytes(last, "big")))
    elif what in _NUMBERS:
        yield Condition(test=Test(what, integer(part, first), integer(part, last)))
    elif what == "protocol":
        yield from (Condition(protocol=number) for number in range(first[0], last[0] + 1))
    elif what in ("source", "destination"):
        for network in summarize_address_range(ip_address(first), ip_address(last)):
            yield Condition(source=network) if what == "source" else Condition(destination=network)
    elif what in ("state", "mark", "connection mark") and first == last:
        number = integer(part, first)
        yield condition_of_state(number) if what == "state" else Condition(test=Test(what, number, number))
    elif what == "owner":
        yield of_owner()
    elif what == "fib type" and first == last:
        yield condition_of_type(integer(part, first))
    elif what == "family" and first == last:
        version = {2: 4, 10: 6}.get(int.from_bytes(first, "big"))
        yield Condition(always=False) if version is None else Condition(source=EVERY[version])
    elif what in ("incoming", "outgoing") and (name := _interface(first, last)):
        yield Condition(incoming=name) if what == "incoming" else Condition(outgoing=name)
    else:
        yield Condition(unknown=True)


def _interface(first: bytes, last: bytes) -> str:
    """The name of an interface, with `+` at its end if all that begin so are meant; empty: the range is another."""
    begin = first.rstrip(b"\0")
    if first == last:
        return text(first)
    return f"{text(begin)}+" if begin and last == begin.ljust(len(last), b"\xff") else ""


def _before(key: bytes) -> bytes:
    return max(int.from_bytes(key, "big") - 1, 0).to_bytes(len(key), "big")
