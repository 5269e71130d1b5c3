"""Rules of nftables, expression by expression (linux/netfilter/nf_tables.h), as rules of the model."""

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Final

from services.core.family import Network
from services.masq.diagnose.extensions import PROTOCOLS, TARGETS, condition_of, port_text
from services.masq.diagnose.nft_sets import MOST_ELEMENTS, Element, word_of
from services.masq.diagnose.nft_sets import condition_of as condition_of_element
from services.masq.diagnose.verdict import (
    WORDS,
    Condition,
    Effect,
    ForeignRule,
)
from services.masq.kernel.nf_tables import attribute_list, attributes, text

_EVERY: Final = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
_SOURCE_AT, _ADDRESS_SIZE, _PROTOCOL_AT = {4: 12, 6: 8}, {4: 4, 6: 16}, {4: 9, 6: 6}  # in the IP header
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_META: Final = {
    1: "ethertype", 4: "incoming index", 5: "outgoing index", 6: "incoming", 7: "outgoing", 15: "family",
    16: "protocol",
}  # fmt: skip
"""NFT_META_..."""
_CT: Final = {0: "state", 2: "status"}  # NFT_CT_...
_VERDICTS: Final = {
    0: Effect.DROP, 1: Effect.ACCEPT, -1: Effect.NOTHING, -2: Effect.NOTHING,
    -3: Effect.JUMP, -4: Effect.GOTO, -5: Effect.RETURN,
}  # fmt: skip
_NAMES: Final = {
    "port": "th dport", "protocol": "meta l4proto", "incoming": "iifname", "outgoing": "oifname", "state": "ct state",
}  # fmt: skip
_MOST_WORDS: Final = 4
"""Of the elements of a set."""
_QUIET: Final = frozenset(("counter", "log", "notrack"))
_LOADS: Final = frozenset(("fib", "exthdr", "rt", "socket", "osf", "numgen", "hash", "inner", "tunnel", "xfrm"))
"""What only brings something into a register: what asks for it is not understood."""


@dataclass(slots=True)
class _Load:
    """What is in a register."""

    what: str = ""
    """`source`, `destination`, `state`, ...; empty: nothing that is understood."""
    size: int = 0
    mask: bytes = b""


@dataclass(slots=True)
class RuleReader:
    """Follows the expressions of one rule."""

    place: str
    """`inet filter`."""
    version: int
    read_set: Callable[[str], list[Element]] = lambda name: []
    registers: dict[int, _Load] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    kind: Effect = Effect.NOTHING
    target: str = ""
    says: str = ""
    """The verdict, as it is written."""
    verdicts: list[tuple[Condition, Mapping[int, bytes]]] = field(default_factory=list)
    """Of a map."""

    def rules(self, values: Mapping[int, bytes]) -> list[ForeignRule]:
        """The rule; for a map of verdicts one for each of its elements."""
        for _, element in attribute_list(values.get(4, b"")):
            expression = attributes(element)
            self._take(text(expression.get(1, b"")), attributes(expression.get(2, b"")))
        handle = int.from_bytes(values.get(3, b""), "big")
        chain = text(values.get(2, b""))
        removal = f"nft delete rule {self.place} {chain} handle {handle}"
        if not self.verdicts:
            said = " ".join(filter(None, (*self.words, self.says, self.target)))
            return [ForeignRule(said, removal, tuple(self.conditions), self.kind, self.target, chain)]
        found = []
        for condition, verdict in self.verdicts:
            kind, target = _verdict(verdict)
            said = " ".join(filter(None, (*self.words, kind.value, target)))
            found.append(ForeignRule(said, removal, (*self.conditions, condition), kind, target, chain))
        return found

    def _take(self, name: str, values: Mapping[int, bytes]) -> None:
        match name:
            case "payload" if 1 in values:
                self.registers[_number(values, 1)] = self._payload(*(_number(values, i) for i in (2, 3, 4)))
            case "meta" if 1 in values:
                self.registers[_number(values, 1)] = _Load(_META.get(_number(values, 2), ""))
            case "ct" if 1 in values:
                self.registers[_number(values, 1)] = _Load(_CT.get(_number(values, 2), ""))
            case "bitwise":
                load = self.registers.get(_number(values, 1), _Load())
                mask, xor = (attributes(values.get(i, b"")).get(1, b"") for i in (4, 5))
                what = "" if any(xor) or not mask or load.mask else load.what
                self.registers[_number(values, 2)] = _Load(what, load.size, mask)
            case "cmp":
                load = self.registers.get(_number(values, 1), _Load())
                self._ask(load, _number(values, 2), attributes(values.get(3, b"")).get(1, b""))
            case "immediate":
                verdict = attributes(attributes(values.get(2, b"")).get(2, b""))
                if verdict:
                    self.kind, self.target = _verdict(verdict)
                    self.says = self.kind.value
            case "reject":
                self.kind, self.says = Effect.DROP, "reject"
            case "match":
                word = text(values.get(1, b""))
                for condition in condition_of(word, _number(values, 2), values.get(3, b"")):
                    self._add(condition, port_text(condition) if condition.ports else f"-m {word}")
            case "target":
                self.says = text(values.get(1, b""))
                self.kind = TARGETS.get(self.says, Effect.UNKNOWN)
            case "lookup":
                self._look_up(self.registers.get(_number(values, 2), _Load()), values)
            case "payload" | "meta" | "ct":  # they write
                pass
            case "queue" | "dup" | "fwd" | "tproxy" | "synproxy":
                self.kind = Effect.UNKNOWN
            case _ if name in _LOADS:
                self.registers[_number(values, 1)] = _Load()
            case _ if name not in _QUIET:
                self._add(Condition(unknown=True), "...")

    def _payload(self, base: int, offset: int, size: int) -> _Load:
        if base == _TRANSPORT_HEADER and (offset, size) == (2, 2):
            return _Load("port")
        if base != _NETWORK_HEADER or not self.version:
            return _Load()
        start, length = _SOURCE_AT[self.version], _ADDRESS_SIZE[self.version]
        if offset == _PROTOCOL_AT[self.version] and size == 1:
            return _Load("protocol")
        what = {start: "source", start + length: "destination"}.get(offset, "") if size <= length else ""
        return _Load(what, size)

    def _look_up(self, load: _Load, values: Mapping[int, bytes]) -> None:
        """In a set, in a map of verdicts (into register 0), or in one that says what to translate to."""
        target = _number(values, 3) if 3 in values else None
        if target:
            self.registers[target] = _Load()
            return
        found = self.read_set(text(values.get(1, b"")))
        is_known = bool(found) and len(found) <= MOST_ELEMENTS and not load.mask
        words = ", ".join(word_of(load.what, each) for each in found[:_MOST_WORDS])
        words += ", ..." if len(found) > _MOST_WORDS else ""
        said = f"{self._name(load.what)} {{ {words} }}" if is_known and load.what else "..."
        if target is None:
            one_of = tuple(condition_of_element(load.what, each) for each in found)
            condition = Condition(one_of=one_of) if is_known else Condition(unknown=True)
            self._add(replace(condition, negated=bool(_number(values, 5) & 1)), said)
        elif is_known:
            self.words.append(said.replace("{", "vmap {", 1))
            self.verdicts = [(condition_of_element(load.what, each), each.verdict) for each in found]
        else:
            self.kind = Effect.UNKNOWN

    def _name(self, what: str) -> str:
        """As nft calls what is in a register."""
        ways = {"source": "saddr", "destination": "daddr"}
        return f"{WORDS[self.version]} {ways[what]}" if what in ways else _NAMES.get(what, what)

    def _ask(self, load: _Load, operator: int, value: bytes) -> None:
        negated, word = operator == 1, "!= " if operator == 1 else ""
        if load.what == "state" and load.mask and not any(value):
            has_new = bool(int.from_bytes(load.mask, sys.byteorder) & 0x08)
            self._add(Condition(new=has_new is (operator == 1)), "ct state ...")
        elif load.what == "status" and load.mask and operator <= 1 and not any(value):
            self._add(Condition(new=operator == 0), "ct status ...")  # no bit is set yet
        elif operator > 1 or (load.mask and load.what not in ("source", "destination")):
            self._add(Condition(unknown=True), "...")
        elif load.what in ("source", "destination") and (network := self._network(load, value)):
            source, destination = (network, None) if load.what == "source" else (None, network)
            way = f"{WORDS[self.version]} {'saddr' if source else 'daddr'} {word}{network}"
            self._add(Condition(source=source, destination=destination, negated=negated), way)
        elif load.what.endswith(" index"):
            self._ask(_Load(load.what.removesuffix(" index")), operator, _name_of(value))
        elif load.what in ("incoming", "outgoing"):
            name = text(value) + ("" if value.endswith(b"\0") else "+")
            incoming, outgoing = (name, None) if load.what == "incoming" else (None, name)
            way = f"{'iifname' if incoming else 'oifname'} {word}{name.replace('+', '*')}"
            self._add(Condition(incoming=incoming, outgoing=outgoing, negated=negated), way)
        elif load.what in ("family", "ethertype"):
            self._is_of({2: 4, 10: 6, 0x0800: 4, 0x86DD: 6}.get(int.from_bytes(value, "big"), 0), negated=negated)
        elif load.what == "protocol":
            number = int.from_bytes(value, "big")
            way = f"meta l4proto {word}{PROTOCOLS.get(number, number)}"
            self._add(Condition(protocol=number, negated=negated), way)
        elif load.what == "port":
            port = int.from_bytes(value, "big")
            self._add(Condition(ports=(port, port), negated=negated), f"th dport {word}{port}")
        else:
            self._add(Condition(unknown=True), "...")

    def _is_of(self, version: int, *, negated: bool) -> None:
        if not version or negated:
            self._add(Condition(unknown=True), "...")
            return
        self.version = self.version or version
        self.conditions.append(Condition(source=_EVERY[version]))

    def _network(self, load: _Load, value: bytes) -> Network | None:
        size = _ADDRESS_SIZE[self.version]
        mask = (load.mask or b"\xff" * load.size).ljust(size, b"\0")
        bits = "".join(f"{byte:08b}" for byte in mask)
        if "01" in bits or len(value) > size:
            return None
        return ip_network((value.ljust(size, b"\0"), bits.count("1")), strict=False)

    def _add(self, condition: Condition, words: str) -> None:
        self.conditions.append(condition)
        if words not in self.words:
            self.words.append(words)


def _verdict(values: Mapping[int, bytes]) -> tuple[Effect, str]:
    """What a verdict does, and the chain it goes to."""
    code = int.from_bytes(values.get(1, b""), "big", signed=True)
    return _VERDICTS.get(code, Effect.UNKNOWN), text(values.get(2, b""))


def _name_of(index: bytes) -> bytes:
    """Of an interface, as nftables writes names."""
    try:
        return socket.if_indextoname(int.from_bytes(index, sys.byteorder)).encode() + b"\0"
    except OSError:
        return b"?\0"  # it is gone: no packet comes by it


def _number(values: Mapping[int, bytes], name: int) -> int:
    return int.from_bytes(values.get(name, b""), "big")
