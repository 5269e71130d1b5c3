"""A legacy table as the kernel has it (struct ipt_entry, ip6t_entry), read into the model. Pure.

The layouts are those of linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h and
linux/netfilter/x_tables.h.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from flannelette.services.core.family import IPV4
from flannelette.services.masq.diagnose.extensions import (
    PROTOCOLS,
    QUEUES,
    conditions_of,
    effect_of,
    given_by,
    network_of,
)
from flannelette.services.masq.diagnose.verdict import (
    IPTABLES,
    LEGACY,
    Condition,
    Effect,
    ForeignChain,
    ForeignRule,
    ForeignTable,
    Given,
    Marking,
    NfHook,
)
from flannelette.services.masq.kernel.legacy_tables import RawTable

_MOST_ENTRIES: Final = 1000
"""Entries of a table whose rules are read: a thousand take about 10 ms."""
_NOT_IN, _NOT_OUT, _NOT_SOURCE, _NOT_DESTINATION, _NOT_PROTOCOL = 0x01, 0x02, 0x08, 0x10, 0x40
_NOT_FRAGMENT: Final = 0x20  # IPT_INV_FRAG
_OTHER_INVERSE: Final = 0x04  # IPT_INV_TOS
_HEADER: Final = 32  # struct xt_entry_match, xt_entry_target: size, name, revision
_NAME: Final = slice(2, 31)
_ACCEPT, _DROP, _RETURN = -2, -1, -5
_ERROR: Final = "ERROR"
"""The target by which the kernel marks the beginning of a chain, and the end of the table."""


@dataclass(frozen=True, slots=True)
class _Layout:
    address: int
    protocol: int
    flags: int
    inverse: int
    target_offset: int
    elements: int
    goto: int
    other_flags: int
    """Flags by which a rule asks for more: IPT_F_FRAG, IP6T_F_TOS."""


_LAYOUTS: Final = {
    4: _Layout(4, 80, 82, 83, 88, 112, 0x02, 0x01),
    6: _Layout(16, 128, 131, 132, 140, 168, 0x04, 0x02),
}


def read_legacy(raw: RawTable) -> ForeignTable:
    """The table. Of one with more than a thousand entries only the policies are read."""
    version, name, entries, layout = raw.version, raw.name, raw.entries, _LAYOUTS[raw.version]
    starts = {start: NfHook(number) for number, start in enumerate(raw.starts) if start is not None}
    if raw.number > _MOST_ENTRIES:
        verdicts = {
            hook.name: (hook, _verdict(entries, _target_of(layout, entries, raw.policies[hook])))
            for hook in starts.values()
        }
        policies = {
            chain: ForeignChain(chain, (), hook, _priority(name, hook), verdict != _ACCEPT, translates=name == "nat")
            for chain, (hook, verdict) in verdicts.items()
        }
        return ForeignTable(LEGACY, version, name, policies, is_whole=False)
    ends = {raw.policies[hook]: hook for hook in starts.values()}
    names = {start: hook.name for start, hook in starts.items()}
    for start, end in _places(layout, entries):
        target = _target_of(layout, entries, start)
        if _name(entries, target) == _ERROR:
            names[end] = _text(entries[target + _HEADER : end])
    listed: dict[str, list[ForeignRule]] = {}
    drops: set[NfHook] = set()
    current = ""
    for start, end in _places(layout, entries):
        current = names.get(start, current)
        target = _target_of(layout, entries, start)
        if _name(entries, target) == _ERROR:
            continue
        if start in ends:
            drops |= {ends[start]} if _verdict(entries, target) != _ACCEPT else set()
            continue
        rules = listed.setdefault(current, [])
        entry = entries[start:end].ljust(layout.elements, b"\0")
        rules.append(replace(rule_of(version, current, entry, names), number=len(rules) + 1))
    by_name = {hook.name: hook for hook in starts.values()}
    found = {}
    for each in sorted({*names.values()} - {_ERROR}):
        hook, rules = by_name.get(each), listed.get(each, [])
        # The kernel ends each user-defined chain with a rule of its own.
        mine = tuple(rules if hook is not None else rules[:-1])
        priority = 0 if hook is None else _priority(name, hook)
        found[each] = ForeignChain(each, mine, hook, priority, hook in drops, translates=name == "nat")
    is_volatile = any(rule.target in QUEUES for chain in found.values() for rule in chain.rules)
    return ForeignTable(LEGACY, version, name, found, is_volatile=is_volatile)


def _priority(table: str, hook: NfHook) -> int:
    return IPTABLES.get(table, {}).get(hook, 0)


def rule_of(version: int, chain: str, entry: bytes, names: Mapping[int, str]) -> ForeignRule:
    """The rule of one entry of a chain. `names` are those of chains, by where they start."""
    layout = _LAYOUTS[version]
    target = _target_of(layout, entry, 0)
    asked = list(_conditions(version, layout, entry, target))
    words = [f"-A {chain}", *(text for _, text in asked if text)]
    name = _name(entry, target)
    is_goto = bool(entry[layout.flags] & layout.goto)
    kind, marking = _effect(entry, target, name)
    has_target = bool(name) and len(entry) >= target + _HEADER
    destination = name
    if not name:
        verdict = _verdict(entry, target)
        kind = {_ACCEPT: Effect.ACCEPT, _DROP: Effect.DROP, _RETURN: Effect.RETURN}.get(verdict, Effect.NOTHING)
        destination = kind.name
        if verdict >= 0 and verdict in names:
            kind, destination = Effect.GOTO if is_goto else Effect.JUMP, names[verdict]
        elif verdict >= 0:
            destination = ""
    words += [f"{'-g' if is_goto else '-j'} {destination}"] if destination else []
    conditions = tuple(condition for condition, _ in asked)
    return ForeignRule(
        " ".join(words),
        conditions,
        kind,
        destination,
        chain,
        marking=marking,
        given=given_by(name, entry[target + _HEADER - 1], entry[target + _HEADER :], version)
        if has_target
        else Given(),
    )


def _effect(entry: bytes, target: int, name: str) -> tuple[Effect, Marking | None]:
    if not name or len(entry) < target + _HEADER:
        return Effect.UNKNOWN, None
    return effect_of(name, entry[target + _HEADER - 1], entry[target + _HEADER :])


def _conditions(version: int, layout: _Layout, entry: bytes, target: int) -> Iterator[tuple[Condition, str]]:
    """Each with its text; empty: none of its own."""
    inverse, size = entry[layout.inverse], layout.address
    for place, option, flag in ((0, "-s", _NOT_SOURCE), (1, "-d", _NOT_DESTINATION)):
        negated = bool(inverse & flag)
        network = network_of(entry[place * size :][:size], entry[(place + 2) * size :][:size])
        if network is None:
            yield Condition(unknown=True), f"{option} ..."
        elif network.prefixlen or negated:
            source, destination = (network, None) if option == "-s" else (None, network)
            text = f"{'! ' if negated else ''}{option} {network}"
            yield Condition(source=source, destination=destination, negated=negated), text
    for place, option, flag in ((0, "-i", _NOT_IN), (1, "-o", _NOT_OUT)):
        raw, mask = (entry[4 * size + 16 * (place + shift) :][:16] for shift in (0, 2))
        if any(mask):
            is_whole = any(mask[len(raw.partition(b"\0")[0]) :])  # with the zero after it
            name = _text(raw) if is_whole else f"{_text(raw).removesuffix('+')}+"
            negated = bool(inverse & flag)
            incoming, outgoing = (name, None) if option == "-i" else (None, name)
            text = f"{'! ' if negated else ''}{option} {name}"
            yield Condition(incoming=incoming, outgoing=outgoing, negated=negated), text
    protocol = _number(entry, layout.protocol, 2)
    if protocol:
        negated = bool(inverse & _NOT_PROTOCOL)
        text = f"{'! ' if negated else ''}-p {PROTOCOLS.get(protocol, protocol)}"
        yield Condition(protocol=protocol, negated=negated), text
    if version == IPV4.version and entry[layout.flags] & layout.other_flags:
        negated = bool(inverse & _NOT_FRAGMENT)
        yield Condition(always=negated), f"{'! ' if negated else ''}-f"
    elif inverse & _OTHER_INVERSE or entry[layout.flags] & layout.other_flags:
        yield Condition(unknown=True), ""
    place = layout.elements
    while place + _HEADER <= min(target, len(entry)):
        size = max(_number(entry, place, 2), _HEADER)
        name, revision = _name(entry, place), entry[place + _HEADER - 1]
        yield from conditions_of(name, revision, entry[place + _HEADER : place + size], version)
        place += size


def _places(layout: _Layout, entries: bytes) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(entries):
        end = start + max(_number(entries, start + layout.target_offset + 2, 2), layout.elements)
        yield start, end
        start = end


def _target_of(layout: _Layout, entries: bytes, start: int) -> int:
    return start + _number(entries, start + layout.target_offset, 2)


def _verdict(entries: bytes, target: int) -> int:
    return _number(entries, target + _HEADER, 4, signed=True)


def _number(entries: bytes, place: int, size: int, *, signed: bool = False) -> int:
    """Reads a number in the byte order of this machine; 0 if the entries end before it."""
    return int.from_bytes(entries[place : place + size], sys.byteorder, signed=signed)


def _name(entries: bytes, place: int) -> str:
    return _text(entries[place : place + _HEADER][_NAME])


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")
