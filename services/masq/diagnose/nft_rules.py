"""Tables of nftables, by netlink alone, read into the model: sets, and rules expression by expression
(linux/netfilter/nf_tables.h).
"""

import socket
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address, ip_network, summarize_address_range
from itertools import islice
from typing import Final

from flannelette.services.core.backend_types import UDP
from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.diagnose.verdict import (
    ARP,
    ECHO,
    IPTABLES,
    NFT,
    TCP,
    WORD,
    WORDS,
    Bits,
    Condition,
    Effect,
    Flow,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    Given,
    Marking,
    Match,
    NfHook,
    State,
    Test,
    of_connection,
    of_owner,
    tracked_only,
)
from flannelette.services.masq.diagnose.xt_rules import (
    LOGS,
    PROTOCOLS,
    QUEUES,
    SHARE,
    STATUS,
    UNKNOWN,
    conditions_of,
    effect_of,
    given_by,
    of_count,
    of_link,
    of_quota,
    of_rate,
    queueing,
    spanned,
)
from flannelette.services.masq.kernel.lookups import is_listening
from flannelette.services.masq.kernel.nf_tables import (
    INET,
    NUMBERS,
    VERSIONS,
    ChainName,
    chain_dump,
    chains_of,
    element_dump,
    has_element,
    nft_tables,
    rule_dump,
    table_flags,
)
from flannelette.services.runtime.os.netlink import attribute, attribute_list, attributes, text

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
_NUMBERED: Final = frozenset(
    (
        "source port", "icmp type", "length", "udp length", "mac", "time", "hour", "day", "direction", "tos",
        "version", "ethertype", "kind", "arp operation", "arp mac",
        "ttl",
    )
)  # fmt: skip
"""Fields of which an element says a range of numbers."""
_PART_SIZES: Final = {
    "port": (2,),
    "source port": (2,),
    "protocol": (1,),
    "source": (4, 16),
    "destination": (4, 16),
    "state": (4,),
}


@frozen
class Part:
    """What some bytes of a register are."""

    what: str
    """`source`, `port`, `state`, ...; `padding`; empty: nothing that is understood."""
    size: int
    is_swapped: bool = False
    """The bytes are in another order than the kernel has them."""
    connection: str = ""
    """Whether it is of the connection's first packets (`original`) or of answers (`reply`); empty: of this packet."""


@frozen
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
    if what in ("source", "destination") and len(value) in _PART_SIZES[what]:
        return str(ip_address(value))
    if what in ("port", "source port", "protocol"):
        return str(int.from_bytes(value, "big"))
    return "..."


def _conditions(part: Part, first: bytes, last: bytes) -> Iterator[Condition]:
    what = part.what
    if len(first) not in _PART_SIZES.get(what, (len(first),)) or first > last:
        yield Condition(unknown=True)
    elif what == "port":
        yield Condition(ports=(int.from_bytes(first, "big"), int.from_bytes(last, "big")))
    elif what in _NUMBERED:
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


_OF_NO_SOCKET: Final = Condition(
    asks=lambda flow: Match.NO if flow.is_for_us and flow.is_of_process and flow.is_answer else Match.YES
)
"""What a program of this host has asked for goes on to it (nft_tproxy.c)."""
_LINK_HEADER, _NETWORK_HEADER, _TRANSPORT_HEADER = 0, 1, 2
_HEADERS: Final[Mapping[tuple[int, int], Sequence[tuple[int, int, str]]]] = {
    (_LINK_HEADER, 0): ((6, 6, "mac"), (12, 2, "ethertype")),
    (_NETWORK_HEADER, 4): (
        (0, 1, "version"), (1, 1, "tos"), (2, 2, "length"), (6, 2, "fragment"), (8, 1, "ttl"), (9, 1, "protocol"),
        (12, 4, "source"), (16, 4, "destination"),
    ),
    (_NETWORK_HEADER, 6): (
        (0, 1, "version"), (1, 1, "traffic class"), (6, 1, "protocol"), (7, 1, "ttl"),
        (8, 16, "source"), (24, 16, "destination"),
    ),
    (_NETWORK_HEADER, ARP): (
        (0, 2, "arp htype"), (2, 2, "arp ptype"), (4, 1, "arp hlen"), (5, 1, "arp plen"), (6, 2, "arp operation"),
        (8, 6, "arp mac"), (14, 4, "source"), (24, 4, "destination"),
    ),
    (_TRANSPORT_HEADER, 0): ((0, 2, "source port"), (2, 2, "port")),
    (_TRANSPORT_HEADER, TCP): ((0, 2, "source port"), (2, 2, "port"), (13, 1, "tcp flags")),
    (_TRANSPORT_HEADER, UDP): ((0, 2, "source port"), (2, 2, "port"), (4, 2, "udp length")),
    **{(_TRANSPORT_HEADER, number): ((0, 1, "icmp type"), (1, 1, "icmp code")) for number in ECHO},
}  # fmt: skip
"""Place, size and name of the fields of a header, by header and, of the network header, IP version or ARP; of the
transport header, protocol (0: any other)."""
_META: Final = {
    0: "length", 1: "ethertype", 3: "mark", 4: "incoming index", 5: "outgoing index", 6: "incoming", 7: "outgoing",
    8: "incoming type", 9: "outgoing type", 10: "owner", 11: "owner", 15: "family", 16: "protocol", 17: "bridge",
    18: "bridge", 19: "kind", 21: "incoming group", 22: "outgoing group", 23: "owner", 24: "share",
    26: "incoming kind", 27: "outgoing kind", 30: "time", 31: "day", 32: "hour",
}  # fmt: skip
"""Names of what `meta` loads, by NFT_META_... number."""
_META_SIZES: Final = {
    "protocol": 1, "family": 1, "ethertype": 2, "incoming": 16, "outgoing": 16, "kind": 1, "time": 8, "day": 1,
    "incoming type": 2, "outgoing type": 2, "incoming kind": 16, "outgoing kind": 16,
}  # fmt: skip
_LINK_WORDS: Final = {
    f"{way} {field}": (way == "incoming", field, f"meta {short}if{field}")
    for way, short in (("incoming", "i"), ("outgoing", "o"))
    for field in ("type", "group", "kind")
}
"""What is asked of an interface: whether that by which packets come, its field, and how nft writes it."""
_ETHERNET: Final = 1  # ARPHRD_ETHER
_CT: Final = {
    0: ("state", 4), 1: ("direction", 1), 2: ("status", 4), 3: ("connection mark", 4), 10: ("protocol", 1),
    11: ("source port", 2), 12: ("port", 2), 19: ("source", 4), 20: ("destination", 4), 21: ("source", 16),
    22: ("destination", 16),
}  # fmt: skip
"""NFT_CT_...: the name and size of what is known of a connection."""
_CT_DIRECTIONS: Final = ("original", "reply")
_VERDICTS: Final = {
    0: Effect.DROP, 1: Effect.ACCEPT, 3: Effect.ACCEPT, -1: Effect.NOTHING, -2: Effect.NOTHING,
    -3: Effect.JUMP, -4: Effect.GOTO, -5: Effect.RETURN,
}  # fmt: skip
NAMES: Final = {
    "port": "th dport", "source port": "th sport", "protocol": "meta l4proto", "incoming": "iifname",
    "outgoing": "oifname", "state": "ct state", "mark": "meta mark", "length": "meta length", "mac": "ether saddr",
    "fragment": "ip frag-off", "tcp flags": "tcp flags", "icmp type": "icmp type", "ttl": "ip ttl",
    "connection mark": "ct mark", "direction": "ct direction", "version": "ip version", "tos": "ip dscp",
    "traffic class": "ip6 dscp", "udp length": "udp length",
    "hour": "meta hour", "day": "meta day", "time": "meta time",
    "ethertype": "ether type", "kind": "meta pkttype",
    "arp htype": "arp htype", "arp ptype": "arp ptype", "arp hlen": "arp hlen", "arp plen": "arp plen",
    "arp operation": "arp operation", "arp mac": "arp saddr ether",
}  # fmt: skip
_WAYS: Final = {"source": "saddr", "destination": "daddr"}
_FIB_SADDR, _FIB_DADDR = 1, 2  # NFTA_FIB_F_
_MOST_WORDS: Final = 4
"""Elements of a set that are shown."""
_QUIET: Final = frozenset(("counter", "log", "dynset", "objref", "last", "flow_offload"))
_ENDS: Final = {
    "reject": (Effect.DROP, "reject"), "notrack": (Effect.UNTRACK, "notrack"),
    "masq": (Effect.TRANSLATE, "masquerade"),
    "synproxy": (Effect.ACCEPT, "synproxy"), "dup": (Effect.NOTHING, "dup"),
    "fwd": (Effect.DROP, "fwd"),  # by another device, past all that is to become of the packet
}  # fmt: skip
"""What an expression of this name does, and how it is written."""
_CT_MARK: Final = 3  # NFT_CT_MARK
_LIMITING_OBJECTS: Final = frozenset((2, 4, 5))
"""NFT_OBJECT_QUOTA, _LIMIT, _CONNLIMIT: the rule goes on as they say."""
_DYNSET_EXPRESSIONS: Final = frozenset((7, 10))
"""NFTA_DYNSET_EXPR, _EXPRESSIONS: what each element of the set has, as a limit, and the rule goes on as it says."""
_LOADS: Final = frozenset(("exthdr", "rt", "socket", "osf", "inner", "tunnel", "xfrm"))
"""What only brings something into a register: what asks for it is not understood."""
_PLAIN: Final = frozenset(
    (
        "payload",
        "meta",
        "cmp",
        "bitwise",
        "counter",
        "immediate",
        "match",
        "target",
        "lookup",
        "log",
        "range",
        "limit",
    )
)
"""Expressions that iptables-nft can show."""
_EXACT: Final = frozenset(("bitwise", "cmp", "counter", "immediate", "masq", "match", "nat", "target"))
_READ: Final = frozenset(("payload", "meta"))
"""Expressions that are conditions, effects or nothing, and those that are so unless they change a packet."""
_MASQ_FLAGS: Final = 1  # NFTA_MASQ_FLAGS
_COUNTER_BYTES, _COUNTER_PACKETS = 1, 2  # NFTA_COUNTER_
_COUNTER: Final = attribute(1, b"counter\0")
_RANGED: Final = frozenset(
    (
        "port", "source port", "length", "ttl", "mark", "connection mark", "protocol", "icmp type", "icmp code",
        "udp length", "hour", "day", "time",
    )
)  # fmt: skip
"""Fields whose numbers are compared with a range."""
_SLOT: Final = 4
"""Bytes of a register."""
_SHARES: Final = frozenset(("share", "hash"))
"""Numbers that each packet, or each connection, has some of."""
_SIZES: Final = {2: 4, 10: 16}
"""Bytes of an address, by address family."""
_NETMAP: Final = 1 << 6  # NF_NAT_RANGE_NETMAP
_SAID: Final = 0x3  # NF_NAT_RANGE_MAP_IPS, _PROTO_SPECIFIED: the registers say it


@frozen
class _Load:
    """The content of a register: parts, one after the other."""

    parts: tuple[Part, ...] = ()
    mask: bytes = b""
    xor: bytes = b""

    @property
    def what(self) -> str:
        """The name of the only part; empty: there are several, or it is not understood."""
        return self.parts[0].what if len(self.parts) == 1 else ""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@frozen
class _Map:
    """A map that has filled registers."""

    slot: int
    """Number of the first register."""
    choices: tuple[tuple[Condition, bytes], ...]
    """The content of the registers for packets that hold a condition; none: unknown."""

    def value(self, content: bytes, slot: int, size: int) -> bytes:
        """What is in a register, if it is of the map."""
        start = (slot - self.slot) * _SLOT
        return content[start : start + size] if start >= 0 else b""


@dataclass(slots=True)
class RuleReader:
    """Follows the expressions of one rule."""

    version: int
    read_set: Callable[[str], list[Element]] = lambda name: []
    ask_set: Callable[[str, tuple[Part, ...]], Condition] = lambda name, parts: UNKNOWN
    """Asks the kernel about an element of a set that is too large to be read."""
    is_large: Callable[[str], bool] = lambda name: False
    protocol: int = 0
    registers: dict[int, _Load] = field(default_factory=dict)
    numbers: dict[int, bytes] = field(default_factory=dict)
    """Constants in registers, by register."""
    conditions: list[Condition] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    kind: Effect = Effect.NOTHING
    target: str = ""
    says: str = ""
    """The verdict, as it is written."""
    marking: Marking | None = None
    given: Given = Given()
    maps: list[_Map] = field(default_factory=list)
    is_plain: bool = True
    is_volatile: bool = False
    """What the rule does changes without it: it adds elements to a set, uses up a quota, or asks whether a program
    has a queue.
    """
    verdicts: list[tuple[Condition, Mapping[int, bytes]]] = field(default_factory=list)
    """The verdicts of a map."""
    choices: list[tuple[Condition, Given]] = field(default_factory=list)
    """What packets are given by a map."""

    def rules(self, values: Mapping[int, bytes], number: int = 0) -> list[ForeignRule]:
        """The rule; for a map of verdicts one for each of its elements."""
        done, is_exact = list[str](), True
        for name, about in expressions_of(values):
            is_exact = is_exact and (name in _EXACT or (name in _READ and 1 in about))
            self.is_plain = self.is_plain and name in _PLAIN
            self.is_volatile = self.is_volatile or name in ("dynset", "queue", "quota")
            done += filter(None, [_done_by(name, about)])
            self._take(name, about)
        chain = text(values.get(2, b""))
        said = " ".join(filter(None, (*self.words, self.says, self.target)))
        handle = int.from_bytes(values.get(3, b""), "big")
        made = ForeignRule(
            said,
            tuple(self.conditions),
            self.kind,
            self.target,
            chain,
            number,
            handle,
            self.marking,
            self.given,
            self.is_plain,
            only_logs=len(done) == 1 and done[0] in LOGS and not self.target,
            is_exact=is_exact,
        )
        if self.choices:
            return [
                replace(made, conditions=(*made.conditions, condition), given=given)
                for condition, given in self.choices
            ]
        if not self.verdicts:
            return [made]
        found = []
        for condition, verdict in self.verdicts:
            kind, target = _verdict(verdict)
            said = " ".join(filter(None, (*self.words, kind.value, target)))
            conditions = (*self.conditions, condition)
            found.append(replace(made, text=said, conditions=conditions, kind=kind, target=target))
        return found

    def _take(self, name: str, values: Mapping[int, bytes]) -> None:
        match name:
            case "payload" if 1 in values:
                self._put(_number(values, 1), self._payload(*(_number(values, i) for i in (2, 3, 4))))
            case "meta" if 1 in values:
                what = _META.get(_number(values, 2), "")
                self._put(_number(values, 1), _Load((Part(what, _META_SIZES.get(what, 4)),)))
            case "meta" if 3 in values and _META.get(_number(values, 2)) == "mark":
                self._set_mark("mark", "connection mark", _number(values, 3))
            case "ct" if 4 in values and _number(values, 2) == _CT_MARK:
                self._set_mark("connection mark", "mark", _number(values, 4))
            case "ct" if 1 in values:
                what, size = _CT.get(_number(values, 2), ("", 4))
                direction = _CT_DIRECTIONS[_number(values, 3) & 1] if 3 in values else ""
                self._put(_number(values, 1), _Load((Part(what, size, connection=direction),)))
            case "fib" if 1 in values:
                self._put(_number(values, 1), _Load((Part(_fib(values), 4),)))
            case "bitwise":
                load = self._get(_number(values, 1), _number(values, 3))
                mask, xor = (attributes(values.get(i, b"")).get(1, b"") for i in (4, 5))
                is_known = mask and not load.mask
                self._put(_number(values, 2), replace(load, mask=mask, xor=xor) if is_known else _Load())
            case "byteorder":
                load = self._get(_number(values, 1), _number(values, 4))
                parts = tuple(replace(part, is_swapped=not part.is_swapped) for part in load.parts)
                self._put(_number(values, 2), replace(load, parts=parts))
            case "cmp":
                value = attributes(values.get(3, b"")).get(1, b"")
                self._ask(self._get(_number(values, 1), len(value)), _number(values, 2), value)
            case "range":
                first, last = (attributes(values.get(i, b"")).get(1, b"") for i in (3, 4))
                self._between(self._get(_number(values, 1), len(first)), first, last, negated=_number(values, 2) == 1)
            case "immediate":
                data = attributes(values.get(2, b""))
                slot = _slot(_number(values, 1))
                self.numbers[slot] = data.get(1, b"")
                self.registers.pop(slot, None)
                if verdict := attributes(data.get(2, b"")):
                    self.kind, self.target = _verdict(verdict)
                    self.says = self.kind.value
            case "nat":
                is_source = _number(values, 1) == 0
                self.kind, self.says = (Effect.TRANSLATE, "snat") if is_source else (Effect.DIVERT, "dnat")
                self._give([_slot(_number(values, each)) for each in (3, 4, 5)], values)
            case "queue":
                queue, count = _number(values, 1), max(_number(values, 2), 1)
                is_bypassed = bool(_number(values, 3) & 1) or 1 not in values  # or a map has the number
                self.kind, self.says = queueing(queue, count, is_bypassed=is_bypassed), f"queue to {queue}"
            case "match":
                match = text(values.get(1, b"")), _number(values, 2), values.get(3, b"")
                for condition, said in conditions_of(*match, self.version):
                    self._add(condition, said)
            case "target":
                self.says = text(values.get(1, b""))
                self.is_volatile = self.is_volatile or self.says in QUEUES
                self.kind, self.marking = effect_of(self.says, _number(values, 2), values.get(3, b""))
                self.given = given_by(self.says, _number(values, 2), values.get(3, b""), self.version)
            case "redir":
                self.kind, self.says = Effect.DIVERT, "redirect"
                self.given = Given((), self._port(_slot(_number(values, 1))))
            case "tproxy":
                port = self._port(_slot(_number(values, 3)))
                is_heard = any(is_listening(number, port) is not False for number in (TCP, UDP))
                self.kind, self.says = Effect.DIVERT if is_heard else Effect.NOTHING, "tproxy"  # else they go on
                self.given, self.is_volatile = Given((), port), True
                self._add(_OF_NO_SOCKET, "")
            case "lookup":
                self._look_up(values)
            case "payload" | "ct" | "meta" | "exthdr" if 1 not in values:  # they write
                pass
            case "objref" if _number(values, 1) in _LIMITING_OBJECTS or 1 not in values:
                self._add(UNKNOWN, "limit ...")
            case "dynset" if values.keys() & _DYNSET_EXPRESSIONS:
                self._add(UNKNOWN, f"@{text(values.get(1, b''))} {{ ... limit ... }}")
            case _ if name in _ENDS:
                options = _number(values, _MASQ_FLAGS) if name == "masq" else 0
                (self.kind, self.says), self.given = _ENDS[name], Given((), options=options)
            case "limit":
                seconds = _number(values, 2) / max(_number(values, 1), 1)
                is_of_packets = not _number(values, 4)
                self._add(of_rate(seconds, _number(values, 3)) if is_of_packets else UNKNOWN, "limit ...")
            case "quota":
                is_over = bool(_number(values, 2) & 1)
                self._add(of_quota(_number(values, 1), _number(values, 4), is_over=is_over), "quota ...")
            case "connlimit":
                self._add(of_count(_number(values, 1), is_above=bool(_number(values, 2) & 1)), "connlimit ...")
            case "numgen" | "hash":
                register = _number(values, 1 if name == "numgen" else 2)
                self._put(register, _Load((Part("share" if name == "numgen" else "hash", 4),)))
            case _ if name in _LOADS:
                self._put(_number(values, 1), _Load())
            case _ if name not in _QUIET:
                self._add(UNKNOWN, "...")

    def _put(self, register: int, load: _Load) -> None:
        self.registers[_slot(register)] = load

    def _get(self, register: int, size: int) -> _Load:
        """What a number of bytes from a register on are; several loads follow each other, each in whole slots."""
        slot = _slot(register)
        first = self.registers.get(slot, _Load())
        if first.size >= size or first.mask:
            return first
        parts, found = list[Part](), 0
        while found < size:
            load = self.registers.get(slot + found // _SLOT)
            if load is None or not load.parts or load.mask:
                return _Load()
            parts += load.parts
            padding = -load.size % _SLOT
            parts += [Part("padding", padding)] if padding and found + load.size < size else []
            found += load.size + padding
        return _Load(tuple(parts))

    def _payload(self, base: int, offset: int, size: int) -> _Load:
        about = {
            _NETWORK_HEADER: self.version,
            _TRANSPORT_HEADER: self.protocol if self.protocol in (TCP, UDP, *ECHO) else 0,
        }
        parts, place, end = list[Part](), offset, offset + size
        for start, length, what in _HEADERS.get((base, about.get(base, 0)), ()):
            if start == place and place < end:
                parts.append(Part(what, min(length, end - start)))
                place += parts[-1].size
        return _Load(tuple(parts)) if place == end else _Load((Part("", size),))

    def _look_up(self, values: Mapping[int, bytes]) -> None:
        """Reads a lookup in a set, in a map of verdicts (into register 0), or in a map of addresses to
        translate to.
        """
        target = _number(values, 3) if 3 in values else None
        name = text(values.get(1, b""))
        is_large, read = self.is_large(name), self.read_set(name)
        found = [] if is_large else read
        load = self._get(_number(values, 2), max((len(each.first) for each in read), default=1))
        parts = () if load.mask else load.parts
        shown = [part for part in parts if part.what != "padding"]
        names = " . ".join(self._name(part.what) or "..." for part in shown)
        if target:
            self._put(target, _Load())
            self.numbers.pop(_slot(target), None)
            if {part.what for part in shown} <= _SHARES:  # some packet has each
                choices = [(Condition(), each.data) for each in found]
            else:
                choices = [(condition_of_element(parts, each), each.data) for each in found]
            self.maps.append(_Map(_slot(target), tuple(choices if parts else ())))
            self.words.append(f"{names or '...'} map")
        elif target is None:
            negated = bool(_number(values, 5) & 1)
            words = ", ".join(word_of(parts, each) for each in found[:_MOST_WORDS])
            said = f"@{name}" if is_large else f"{{ {words}{', ...' if len(found) > _MOST_WORDS else ''} }}"
            one_of = tuple(condition_of_element(parts, each) for each in found)
            condition = self.ask_set(name, parts) if is_large else Condition(one_of=one_of)
            self._add(
                replace(condition if parts else UNKNOWN, negated=negated), f"{names or '...'} {'!= ' * negated}{said}"
            )
        elif is_large:
            self.kind = Effect.UNKNOWN
        else:
            self.words.append(f"{names or '...'} vmap")
            self.verdicts = [(condition_of_element(parts, each), each.verdict) for each in found]
            self.verdicts = self.verdicts or [(Condition(always=False), {})]

    def _name(self, what: str, version: int = 0) -> str:
        """Names the content of a register as nft does."""
        if what not in _WAYS:
            return "ip6 hoplimit" if (what, self.version) == ("ttl", 6) else NAMES.get(what, what)
        is_arp = self.version == ARP
        return f"{WORDS[self.version if is_arp else version or self.version]} {_WAYS[what]}{' ip' * is_arp}"

    def _set_mark(self, own: str, other: str, register: int) -> None:
        """A change of this mark, to what is in the register."""
        load, number = self.registers.get(_slot(register), _Load()), self.numbers.get(_slot(register))
        mask, xor = (int.from_bytes(each, sys.byteorder) for each in (load.mask or b"\xff" * 4, load.xor))
        if load.what in (own, other):
            kept, taken = (mask, 0) if load.what == own else (0, mask)
            marking = Marking(kept, taken, Bits(xor))
        elif number is not None and not load.parts:
            marking = Marking(toggled=Bits(int.from_bytes(number, sys.byteorder)))
        else:
            marking = Marking(toggled=Bits(0, WORD))
        self.marking = replace(marking, is_of_connection=own == "connection mark")
        self.says = f"{NAMES[own]} set ..."

    def _give(self, slots: Sequence[int], values: Mapping[int, bytes]) -> None:
        """Reads what a translation gives, from the registers of the first and the last address, and of the port."""
        size, flags = _SIZES.get(_number(values, 2), 4), _number(values, 7)
        used = [each for each in self.maps if any(slot >= each.slot and slot not in self.numbers for slot in slots)]
        if not used:
            self.given = self._given(slots, size, lambda slot, size: b"", flags)
            return
        each = used[-1]
        self.choices = [
            (condition, self._given(slots, size, partial(each.value, content), flags))
            for condition, content in each.choices
        ]
        if not self.choices:
            self._add(UNKNOWN, "")  # which packets it has an address for
        elif all(condition == Condition() for condition, _ in self.choices) and len(self.choices) > 1:
            some = [given for _, given in self.choices]
            networks = tuple(network for given in some for network in given.networks or ())
            self.given, self.choices = replace(some[0], networks=networks or None), []

    def _given(self, slots: Sequence[int], size: int, of_map: Callable[[int, int], bytes], flags: int) -> Given:
        first, last = (self.numbers.get(slot, b"")[:size] or of_map(slot, size) for slot in slots[:2])
        port = int.from_bytes((self.numbers.get(slots[2], b"") or of_map(slots[2], 2))[:2], "big")
        if slots[0] < 0:
            return Given(None, port, is_kept=True)
        try:
            networks = spanned(first, last or first) if len(first) == size else None
            return Given(networks, port, is_mapped=bool(flags & _NETMAP), options=flags & ~_SAID & ~_NETMAP)
        except (ValueError, TypeError):
            return Given(None, port)

    def _port(self, slot: int) -> int:
        return int.from_bytes(self.numbers.get(slot, b"")[:2], "big")

    def _ask(self, load: _Load, operator: int, value: bytes) -> None:
        if operator > 1:
            self._compare(load, operator, value)
            return
        negated = operator == 1
        if any(load.xor) or not load.parts:
            self._add(UNKNOWN, "...")
            return
        asked, place = list[tuple[Condition, str]](), 0
        for part in load.parts:
            size = min(part.size, max(len(value) - place, 0))
            one = value[place : place + part.size] if len(load.parts) > 1 else value
            mask = load.mask[place : place + part.size]
            place += part.size
            if size and part.what != "padding":
                condition, said = self._equal(part, one, mask, negated=negated and len(load.parts) == 1)
                words = f"ct {part.connection} " if part.connection else ""
                asked.append((of_part(part, condition), f"{words}{said}" if said else ""))
        if len(asked) > 1 and negated:
            self._add(Condition(each=tuple(condition for condition, _ in asked), negated=True), "...")
            return
        for condition, said in asked:
            self._add(condition, said)

    def _equal(self, part: Part, value: bytes, mask: bytes, *, negated: bool) -> tuple[Condition, str]:
        word = "!= " if negated else ""
        what = part.what
        if what in ("source", "destination"):
            network = self._network(part, value, mask)
            if network is None:
                return UNKNOWN, "..."
            source, destination = (network, None) if what == "source" else (None, network)
            said = f"{self._name(what, network.version)} {word}{network}"
            return Condition(source, destination, negated=negated), said
        if what in ("incoming", "outgoing", "incoming index", "outgoing index"):
            name = text(value) + ("" if value.endswith(b"\0") else "+")
            name = text(_name_of(value)) if what.endswith("index") else name
            is_in = what.startswith("incoming")
            said = f"{'iifname' if is_in else 'oifname'} {word}{name.replace('+', '*')}"
            return Condition(
                incoming=name if is_in else None, outgoing=None if is_in else name, negated=negated
            ), said
        if what == "family":
            return self._is_of({2: 4, 10: 6}.get(int.from_bytes(value, "big"), 0), negated=negated)
        if what == "ethertype":
            return self._is_of_type(int.from_bytes(value, "big"), negated=negated)
        if what == "share":
            return SHARE, "numgen ..."
        number = integer(part, value)
        if what == "protocol" and not mask:
            self.protocol = 0 if negated or part.connection else number
            return Condition(protocol=number, negated=negated), f"meta l4proto {word}{PROTOCOLS.get(number, number)}"
        if what == "port" and not mask:
            return Condition(ports=(number, number), negated=negated), f"th dport {word}{number}"
        bits = integer(part, mask) if mask else -1
        if what == "state":
            has_any = not number and bits != -1
            states, negated = (bits, not negated) if has_any else (number, negated)
            text_of = ",".join((state.name or "").lower() for state in State if state & states)
            asked = Condition(states=bits) if has_any else condition_of_state(number)
            return replace(asked, negated=negated), f"ct state {'!= ' if negated else ''}{text_of}"
        if what == "status":
            return replace(STATUS, negated=negated is not (number == 0)), "ct status ..."
        if what == "owner":
            return of_owner(), "meta skuid ..."
        if what in _LINK_WORDS:
            return self._of_link(what, value, mask, negated=negated)
        if what in ("fib route", "fib type"):
            return self._fib(what, number, negated=negated)
        said = (
            f"{self._name(what)} & {bits:#x} {word or '== '}{number:#x}"
            if mask
            else f"{self._name(what)} {word}{number}"
        )
        said = said if what in NAMES else "..."
        return Condition(test=Test(what, number, number, bits), negated=negated), said

    def _fib(self, what: str, number: int, *, negated: bool) -> tuple[Condition, str]:
        """Whether a route leads back, which others look at, or of what type an address is."""
        if what == "fib route":
            return Condition(always=bool(number), negated=negated), "fib ..."
        said = f"fib daddr type {'local' if number == RTN_LOCAL else number}"
        return replace(condition_of_type(number), negated=negated), said

    def _of_link(self, what: str, value: bytes, mask: bytes, *, negated: bool) -> tuple[Condition, str]:
        is_incoming, field, word = _LINK_WORDS[what]
        number = int.from_bytes(value, sys.byteorder)
        wanted: int | str = text(value) if field == "kind" else number
        bits = int.from_bytes(mask, sys.byteorder) if mask else -1
        condition = of_link(field, wanted, bits, is_incoming=is_incoming, negated=negated)
        is_added = field == "type" and number == _ETHERNET  # by nft itself, before a MAC address is compared
        return condition, "" if is_added else f"{word} {'!= ' * negated}{wanted}"

    def _compare(self, load: _Load, operator: int, value: bytes) -> None:
        """Condition of a comparison: less, at most, greater, at least."""
        number = integer(load.parts[0], value) if load.parts else 0
        first, last = {2: (0, number - 1), 3: (0, number), 4: (number + 1, 1 << 128), 5: (number, 1 << 128)}.get(
            operator, (0, 1 << 128)
        )
        sign = {2: "<", 3: "<=", 4: ">", 5: ">="}.get(operator, "")
        self._within(load, first, last, f"{self._name(load.what)} {sign} {number}", negated=False)

    def _between(self, load: _Load, first: bytes, last: bytes, *, negated: bool) -> None:
        numbers = [integer(load.parts[0], value) if load.parts else 0 for value in (first, last)]
        word = "!= " if negated else ""
        if load.what in ("source", "destination") and not load.mask:
            element = condition_of_element(load.parts, Element(first, last, {}))
            self._add(
                replace(element, negated=negated),
                f"{self._name(load.what)} {word}{word_of(load.parts, Element(first, last, {}))}",
            )
            return
        self._within(
            load, numbers[0], numbers[1], f"{self._name(load.what)} {word}{numbers[0]}-{numbers[1]}", negated=negated
        )

    def _within(self, load: _Load, first: int, last: int, said: str, *, negated: bool) -> None:
        if load.what == "share":
            self._add(SHARE, "numgen ...")
        elif load.what in _RANGED and not load.mask:
            self._add(of_part(load.parts[0], Condition(test=Test(load.what, first, last), negated=negated)), said)
        else:
            self._add(UNKNOWN, said if load.what else "...")

    def _is_of(self, version: int, *, negated: bool) -> tuple[Condition, str]:
        if not version:
            return Condition(always=negated), "ether type ..."  # no IP packet
        if not negated:
            self.version = self.version or version
        return Condition(source=EVERY[version], negated=negated), ""

    def _is_of_type(self, number: int, *, negated: bool) -> tuple[Condition, str]:
        """Condition on the EtherType, of which that of IP is not shown."""
        about = {0x0800: 4, 0x86DD: 6, ARP: ARP}.get(number, 0)
        if about and not negated:
            self.version = self.version or about
        said = "" if about in EVERY else f"ether type {'!= ' * negated}{'arp' if about else f'{number:#x}'}"
        return Condition(test=Test("ethertype", number, number), negated=negated), said

    def _network(self, part: Part, value: bytes, mask: bytes) -> Network | None:
        size = 4 if self.version in (4, ARP) or (part.connection and part.size == 4) else 16
        mask = (mask or b"\xff" * min(part.size, len(value))).ljust(size, b"\0")
        bits = "".join(f"{byte:08b}" for byte in mask)
        if "01" in bits or len(value) > size:
            return None
        return ip_network((value.ljust(size, b"\0"), bits.count("1")), strict=False)

    def _add(self, condition: Condition, words: str) -> None:
        self.conditions.append(condition)
        if condition.protocol is not None and not condition.negated:
            self.protocol = condition.protocol
        if words and words not in self.words:
            self.words.append(words)


def expressions_of(rule: Mapping[int, bytes]) -> Iterator[tuple[str, dict[int, bytes]]]:
    """Name and attributes of each expression in a rule, of which the attributes (NFTA_RULE_...) are given."""
    for _, element in attribute_list(rule.get(4, b"")):
        expression = attributes(element)
        yield text(expression.get(1, b"")), attributes(expression.get(2, b""))


def without_counters(rule: Mapping[int, bytes]) -> bytes:
    """The expressions of a rule, but what it has counted."""
    elements = attribute_list(rule.get(4, b""))
    return b"".join(attribute(kind, element) for kind, element in elements if not element.startswith(_COUNTER))


def counters_of(rule: Mapping[int, bytes]) -> tuple[int, int]:
    """Packets and bytes that a rule has counted."""
    counters = (element for _, element in attribute_list(rule.get(4, b"")) if element.startswith(_COUNTER))
    counter = attributes(attributes(next(counters, b"")).get(2, b""))
    return _number(counter, _COUNTER_PACKETS), _number(counter, _COUNTER_BYTES)


def _done_by(name: str, values: Mapping[int, bytes]) -> str:
    """What an expression does, as iptables calls it; empty: it asks or counts."""
    if name == "target":
        return text(values.get(1, b""))
    is_written = name in ("meta", "ct", "payload", "exthdr") and 1 not in values
    return "LOG" if name == "log" else name if is_written or name in ("immediate", "reject") else ""


def _verdict(values: Mapping[int, bytes]) -> tuple[Effect, str]:
    """What a verdict does, and the chain it goes to."""
    code = int.from_bytes(values.get(1, b""), "big", signed=True)
    return _VERDICTS.get(code, Effect.UNKNOWN), text(values.get(2, b""))


def _fib(values: Mapping[int, bytes]) -> str:
    """Result of a FIB lookup expression: the interface of the route back; the type of the destination."""
    result, flags = _number(values, 2), _number(values, 3)
    is_source = bool(flags & _FIB_SADDR)
    is_type = result == 3 and flags == _FIB_DADDR  # with an interface another one's address is not local
    return "fib route" if is_source and result != 3 else "fib type" if is_type else ""


def _name_of(index: bytes) -> bytes:
    """Returns an interface's name as nftables writes names, with a zero byte at its end."""
    try:
        return socket.if_indextoname(int.from_bytes(index, sys.byteorder)).encode() + b"\0"
    except OSError:
        return b"?\0"  # it is gone: no packet comes by it


def _slot(register: int) -> int:
    """Number of the first 4-byte slot of a register.

    Registers have 16 bytes up to number 4, and 4 bytes from 8 on.
    """
    return 4 * (register - 1) if 0 < register < 5 else register - 8 if register >= 8 else -1


def _number(values: Mapping[int, bytes], name: int) -> int:
    return int.from_bytes(values.get(name, b""), "big")


_MOST_RULES: Final = 1000
"""Rules of a table: a thousand take about 10 ms."""
_DORMANT, _UNUSABLE_FLAGS = 1, 1 | 2  # NFT_TABLE_F_DORMANT, NFT_TABLE_F_OWNER
_KINDS: Final = {"filter": "filter", "nat": "nat"}
_ARP, _NETDEV, _BRIDGE = 3, 5, 7  # NFPROTO_
_OTHERS: Final = {_ARP: "arp", _NETDEV: "netdev", _BRIDGE: "bridge"}
_HOOKS: Final[Mapping[int, Sequence[NfHook]]] = {
    _ARP: (NfHook.ARP_INPUT, NfHook.ARP_OUTPUT),
    _NETDEV: (NfHook.INGRESS, NfHook.EGRESS),
    _BRIDGE: (
        NfHook.BRIDGE_PREROUTING,
        NfHook.BRIDGE_INPUT,
        NfHook.BRIDGE_FORWARD,
        NfHook.BRIDGE_OUTPUT,
        NfHook.BRIDGE_POSTROUTING,
    ),
}
"""Hooks of the address families that are not IP's, in the order of the kernel's numbers from 0."""
_IP_HOOKS: Final = tuple(hook for hook in NfHook if hook <= NfHook.INGRESS)


def read_nft(but: Iterable[str] = ()) -> list[ForeignTable]:
    """Every table in force that sees packets of IP or ARP and has none of these names. Raises Unavailable."""
    bases: dict[tuple[int, str], dict[str, ForeignChain]] = {}
    hooked = set[tuple[int, str]]()
    for family, values in chain_dump():
        key, name = (family, text(values[1])), text(values[3])
        if (family in VERSIONS or family in (INET, *_OTHERS)) and key[1] not in but:
            chain = bases.setdefault(key, {})[name] = base_chain(name, family, values)
            if chain.hook is not None:
                hooked.add(key)
    if not hooked:
        return []
    flags = table_flags()
    return [_table(*key, bases[key]) for key in sorted(hooked) if not flags.get(key, 0) & _DORMANT]


def has_iptables_rules(but: Collection[str]) -> bool:
    """Whether iptables-nft has rules here, or a policy that drops: in tables with its names and its base chains.

    Chains of these names do not count, nor do the jumps to them. Raises Unavailable.
    """
    found: dict[tuple[int, str], bool] = {}
    for place, values in chains_of(_base_chains(nft_tables())).items():
        chain, key = base_chain(place.name, NUMBERS[place.version], values), (NUMBERS[place.version], place.table)
        if (chain.hook, chain.priority) == (NfHook[place.name], IPTABLES[place.table][NfHook[place.name]]):
            found[key] = found.get(key, False) or chain.drops
    if any(found.values()):
        return True
    rules = (values for key in found for values in rule_dump(*key))
    others = (values for values in rules if text(values.get(2, b"")) not in but)
    return any(rule.target not in but for values in others for rule in RuleReader(4).rules(values))


def _base_chains(tables: Iterable[tuple[int, str]]) -> list[ChainName]:
    """The base chains that iptables-nft makes in these of its tables."""
    iptables = ((version, table) for version, table in tables if version and table in IPTABLES)
    return [ChainName(version, table, hook.name) for version, table in iptables for hook in IPTABLES[table]]


def not_for_iptables(chains: Collection[tuple[str, str]]) -> str:
    """Why iptables-nft can write no rule into one of these chains, each with its table; empty: it can.

    Another program may have made the table, or a chain with the name of iptables'. Raises Unavailable.
    """
    tables = {table for table, _ in chains}
    for (family, table), flags in table_flags().items():
        if family in VERSIONS and table in tables and flags & _UNUSABLE_FLAGS:
            word = "is dormant" if flags & _DORMANT else "belongs to a process"
            return f"table {WORDS[VERSIONS[family]]} {table} {word}, so that no rule of iptables has an effect there"
    places = (ChainName(version, table, name) for version in NUMBERS for table, name in chains)
    for place, values in chains_of(places).items():
        chain, kind, hook = (
            base_chain(place.name, NUMBERS[place.version], values),
            text(values.get(7, b"")),
            NfHook[place.name],
        )
        if (chain.hook, chain.priority, kind) != (hook, IPTABLES[place.table][hook], _KINDS[place.table]):
            where = f"chain {place.name} of table {WORDS[place.version]} {place.table}"
            return f"{where} is not as iptables makes it: another program has made it, and iptables refuses it"
    return ""


def base_chain(name: str, family: int, values: Mapping[int, bytes]) -> ForeignChain:
    """The chain of these attributes (NFTA_CHAIN_...), without its rules; no base chain has no hook."""
    hook = attributes(values.get(4, b""))
    if not hook:
        return ForeignChain(name, ())
    number, priority = (int.from_bytes(hook.get(i, bytes(4)), "big", signed=True) for i in (1, 2))
    hooks = _HOOKS.get(family, _IP_HOOKS)
    if not 0 <= number < len(hooks):
        return ForeignChain(name, ())
    devices = [text(device) for _, device in attribute_list(hook.get(4, b""))] or [text(hook.get(3, b""))]
    kind = text(values.get(7, b""))
    return ForeignChain(
        name, (), hooks[number], priority, values.get(5) == bytes(4), tuple(filter(None, devices)), kind == "nat"
    )


def _table(family: int, name: str, chains: Mapping[str, ForeignChain]) -> ForeignTable:
    version = VERSIONS.get(family, 0)
    read = list(islice(rule_dump(family, name), _MOST_RULES + 1))
    rules: dict[str, list[ForeignRule]] = {}
    sets: dict[str, list[Element]] = {}
    is_volatile = False

    def read_set(of: str) -> list[Element]:
        nonlocal is_volatile
        if of not in sets:
            dump = list(islice(element_dump(family, name, of), 2 * MOST_ELEMENTS + 2))
            sets[of], is_volatile = elements(dump), is_volatile or has_timeouts(dump)
        return sets[of]

    def ask_set(of: str, parts: tuple[Part, ...]) -> Condition:
        return Condition(asks=lambda flow: _is_in(family, name, of, parts, flow), of_set=True)

    numbers = Counter[str]()
    for values in read:
        chain = text(values.get(2, b""))
        numbers[chain] += 1
        reader = RuleReader(
            ARP if family == _ARP else version, read_set, ask_set, lambda of: len(read_set(of)) > MOST_ELEMENTS
        )
        rules.setdefault(chain, []).extend(reader.rules(values, numbers[chain]))
        is_volatile = is_volatile or reader.is_volatile
    found = {each: replace(chain, rules=tuple(rules.get(each, ()))) for each, chain in chains.items()}
    is_plain = all(rule.is_plain for each in rules.values() for rule in each)
    is_whole, word = len(read) <= _MOST_RULES, _OTHERS.get(family, "")
    return ForeignTable(NFT, version, name, found, is_whole, word, is_plain, is_volatile)


def _is_in(family: int, table: str, name: str, parts: Sequence[Part], flow: Flow) -> Match:
    key = key_of(parts, flow)
    found = None if key is None else has_element(family, table, name, key)
    return Match.MAYBE if found is None else Match.YES if found else Match.NO
