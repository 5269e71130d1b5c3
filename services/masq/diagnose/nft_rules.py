"""Tables of nftables, by netlink alone (linux/netfilter/nf_tables.h), read into the model."""

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from itertools import islice
from typing import Final

from services.core.family import Network
from services.masq.diagnose.extensions import PROTOCOLS, TARGETS, condition_of, port_text
from services.masq.diagnose.verdict import (
    IPTABLES,
    NFT,
    WORDS,
    Condition,
    Effect,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    NfHook,
)
from services.masq.kernel.nf_tables import FAMILIES, INET, attribute_list, attributes, chain_dump, rule_dump, text

_MOST_RULES: Final = 1000
"""Of a table: a thousand take about 10 ms."""
_EVERY: Final = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
_SOURCE_AT, _ADDRESS_SIZE, _PROTOCOL_AT = {4: 12, 6: 8}, {4: 4, 6: 16}, {4: 9, 6: 6}  # in the IP header
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_META: Final = {1: "ethertype", 6: "incoming", 7: "outgoing", 15: "family", 16: "protocol"}  # NFT_META_...
_VERDICTS: Final = {
    0: Effect.DROP, 1: Effect.ACCEPT, -1: Effect.NOTHING, -2: Effect.NOTHING,
    -3: Effect.JUMP, -4: Effect.GOTO, -5: Effect.RETURN,
}  # fmt: skip
_QUIET: Final = frozenset(("counter", "log", "notrack"))
_LOADS: Final = frozenset(("fib", "exthdr", "rt", "socket", "osf", "numgen", "hash", "inner", "tunnel", "xfrm"))
"""What only brings something into a register: what asks for it is not understood."""


def read_nft(but: Iterable[str] = ()) -> list[ForeignTable]:
    """Every table that filters IP packets and has none of these names. Raises Unavailable."""
    bases: dict[tuple[int, str], dict[str, ForeignChain]] = {}
    filters = set[tuple[int, str]]()
    for family, values in chain_dump():
        key, name = (family, text(values[1])), text(values[3])
        if (family in FAMILIES or family == INET) and key[1] not in but:
            chain = bases.setdefault(key, {})[name] = _chain(name, values)
            if chain.hook is not None and text(values.get(7, b"")) != "nat":
                filters.add(key)
    return [_table(*key, bases[key]) for key in sorted(filters)]


def has_iptables_rules(but: Collection[str]) -> bool:
    """Whether iptables-nft has rules here, or a policy that drops: in tables with its names and its base chains.

    Chains of these names do not count, nor do the jumps to them. Raises Unavailable.
    """
    found: dict[tuple[int, str], bool] = {}
    for family, values in chain_dump():
        chain, key = _chain(text(values[3]), values), (family, text(values[1]))
        priorities = IPTABLES.get(key[1], {}) if family in FAMILIES else {}
        wanted = [(hook.name, hook, priority) for hook, priority in priorities.items()]
        if (chain.name, chain.hook, chain.priority) in wanted:
            found[key] = found.get(key, False) or chain.drops
    if any(found.values()):
        return True
    rules = (values for key in found for values in rule_dump(*key))
    others = (values for values in rules if text(values[2]) not in but)
    return any(_Reader("", 4).rule(values).target not in but for values in others)


def _chain(name: str, values: Mapping[int, bytes]) -> ForeignChain:
    hook = attributes(values.get(4, b""))
    if not hook:
        return ForeignChain(name, ())
    number, priority = (int.from_bytes(hook.get(i, bytes(4)), "big", signed=True) for i in (1, 2))
    if number not in NfHook.__members__.values():
        return ForeignChain(name, ())  # ingress, egress
    return ForeignChain(name, (), NfHook(number), priority, values.get(5) == bytes(4))


def _table(family: int, name: str, chains: Mapping[str, ForeignChain]) -> ForeignTable:
    version = FAMILIES.get(family, 0)
    read = list(islice(rule_dump(family, name), _MOST_RULES + 1))
    rules: dict[str, list[ForeignRule]] = {}
    for values in read:
        rules.setdefault(text(values[2]), []).append(_Reader(f"{WORDS[version]} {name}", version).rule(values))
    found = {
        each: ForeignChain(each, tuple(rules.get(each, ())), chain.hook, chain.priority, chain.drops)
        for each, chain in chains.items()
    }
    return ForeignTable(NFT, version, name, found, is_whole=len(read) <= _MOST_RULES)


@dataclass(slots=True)
class _Load:
    """What is in a register."""

    what: str = ""
    """`source`, `destination`, `state`, ...; empty: nothing that is understood."""
    size: int = 0
    mask: bytes = b""


@dataclass(slots=True)
class _Reader:
    """Follows the expressions of one rule."""

    place: str
    """`inet filter`."""
    version: int
    registers: dict[int, _Load] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    kind: Effect = Effect.NOTHING
    target: str = ""
    says: str = ""
    """The verdict, as it is written."""

    def rule(self, values: Mapping[int, bytes]) -> ForeignRule:
        """The rule."""
        for _, element in attribute_list(values.get(4, b"")):
            expression = attributes(element)
            self._take(text(expression.get(1, b"")), attributes(expression.get(2, b"")))
        handle = int.from_bytes(values.get(3, b""), "big")
        words = filter(None, (*self.words, self.says, self.target))
        chain = text(values[2])
        removal = f"nft delete rule {self.place} {chain} handle {handle}"
        return ForeignRule(" ".join(words), removal, tuple(self.conditions), self.kind, self.target, chain)

    def _take(self, name: str, values: Mapping[int, bytes]) -> None:
        match name:
            case "payload" if 1 in values:
                self.registers[_number(values, 1)] = self._payload(*(_number(values, i) for i in (2, 3, 4)))
            case "meta" if 1 in values:
                self.registers[_number(values, 1)] = _Load(_META.get(_number(values, 2), ""))
            case "ct" if 1 in values:
                self.registers[_number(values, 1)] = _Load("" if _number(values, 2) else "state")
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
                    code = int.from_bytes(verdict.get(1, b""), "big", signed=True)
                    self.kind, self.target = _VERDICTS.get(code, Effect.UNKNOWN), text(verdict.get(2, b""))
                    self.says = self.kind.value
            case "reject":
                self.kind, self.says = Effect.DROP, "reject"
            case "match":
                for condition in condition_of(text(values[1]), _number(values, 2), values.get(3, b"")):
                    self._add(condition, port_text(condition) if condition.ports else f"-m {text(values[1])}")
            case "target":
                self.kind, self.says = TARGETS.get(text(values[1]), Effect.UNKNOWN), text(values[1])
            case "lookup" if 3 in values and _number(values, 3) == 0:  # a map of verdicts
                self.kind = Effect.UNKNOWN
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

    def _ask(self, load: _Load, operator: int, value: bytes) -> None:
        negated, word = operator == 1, "!= " if operator == 1 else ""
        if load.what == "state" and load.mask and not any(value):
            has_new = bool(int.from_bytes(load.mask, sys.byteorder) & 0x08)
            self._add(Condition(new=has_new is (operator == 1)), "ct state ...")
        elif operator > 1 or (load.mask and load.what not in ("source", "destination")):
            self._add(Condition(unknown=True), "...")
        elif load.what in ("source", "destination") and (network := self._network(load, value)):
            source, destination = (network, None) if load.what == "source" else (None, network)
            way = f"{WORDS[self.version]} {'saddr' if source else 'daddr'} {word}{network}"
            self._add(Condition(source=source, destination=destination, negated=negated), way)
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
        if "01" in bits:
            return None
        return ip_network((value.ljust(size, b"\0"), bits.count("1")), strict=False)

    def _add(self, condition: Condition, words: str) -> None:
        self.conditions.append(condition)
        if words not in self.words:
            self.words.append(words)


def _number(values: Mapping[int, bytes], name: int) -> int:
    return int.from_bytes(values.get(name, b""), "big")
