"""The rules of a chain of a legacy table, from the kernel's bytes, as far as our jump and its place depend on them.

python-iptables would walk over every rule before the jump, and the extensions of some may not be installed.
"""

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from flannelette.services.masq.diagnose.jump_place import LOGS, Asks, HookRule, Span, hook_rule_of, span_of
from flannelette.services.masq.diagnose.verdict import Condition, ForeignRule
from flannelette.services.masq.diagnose.xt_rules import rule_of
from flannelette.services.masq.firewalls.flannelds import BareRule
from flannelette.services.masq.firewalls.iptables import ChainForm, FoundJump, FoundRule
from flannelette.services.masq.kernel.legacy_tables import ELEMENT, RawChain, RawTable, layout_of

_GOTO: Final = {4: 0x02, 6: 0x04}  # IPT_F_GOTO, IP6T_F_GOTO
_ADDRESS_BYTES: Final = {4: 4, 6: 16}


def jumps_and_span(wanted: ChainForm, table: RawTable) -> tuple[tuple[FoundJump, ...], Span]:
    """The jumps to our chain in its hook, and where one may stand."""
    chains = table.chains()
    names = {chain.start: name for name, chain in chains.items()}
    rules = chains[wanted.hook].rules if wanted.hook in chains else []
    jumps = tuple(_jumps(wanted, table, rules, chains[wanted.name])) if wanted.name in chains else ()
    places = {jump.position for jump in jumps}
    others = [rule for place, rule in enumerate(rules) if place not in places]

    def rule_at(place: tuple[int, int]) -> HookRule:
        return _hook_rule(table, wanted.hook, place, names)

    def chain_of(name: str) -> Sequence[HookRule] | None:
        return [rule_at(each) for each in chains[name].rules] if name in chains else None

    return jumps, span_of(wanted.table, len(others), lambda place: rule_at(others[place]), chain_of)


def bare_rules(table: RawTable, hook: str) -> list[BareRule | None]:
    """Returns the rules of a hook's chain that ask for addresses only, without the options of their targets.

    None: another rule, or one about a network that the chain does not name both as a source and as a destination.
    """
    size = _ADDRESS_BYTES[table.version]
    chains = table.chains()
    rules = chains[hook].rules if hook in chains else []
    ends = [struct.unpack_from(f"={size}s{size}s{size}s{size}s", table.entries, start) for start, _ in rules]
    sources, destinations = [(each[0], each[2]) for each in ends], [(each[1], each[3]) for each in ends]
    both = {*sources} & {*destinations} - {(bytes(size), bytes(size))}
    return [
        _bare_rule(rule_of(table.version, hook, table.entries[slice(*place)], {})) if {*pair} & both else None
        for place, pair in zip(rules, zip(sources, destinations, strict=True), strict=True)
    ]


def _bare_rule(rule: ForeignRule) -> BareRule | None:
    ends = {True: "", False: ""}
    for each in rule.conditions:
        network = each.source or each.destination
        if network is None or replace(each, source=None, destination=None, negated=False) != Condition():
            return None
        ends[each.source is not None] = f"{'!' if each.negated else ''}{network}"
    return BareRule(ends[True], ends[False], rule.target)


def _hook_rule(table: RawTable, chain: str, place: tuple[int, int], names: Mapping[int, str]) -> HookRule:
    found = rule_of(table.version, chain, table.entries[slice(*place)], names)
    return hook_rule_of(found, is_log=found.target in LOGS)


def _jumps(
    wanted: ChainForm, table: RawTable, rules: Sequence[tuple[int, int]], chain: RawChain
) -> Iterator[FoundJump]:
    layout, ours = layout_of(table.version), chain.start
    for place, (start, end) in enumerate(rules):
        target = start + struct.unpack_from("=H", table.entries, start + layout.target_offset)[0]
        name, verdict = table.entries[target + 2 : target + 3], table.entries[target + ELEMENT : target + ELEMENT + 4]
        if name != b"\0" or verdict != struct.pack("=i", ours):
            continue
        packets, octets = struct.unpack_from("=QQ", table.entries, start + layout.counters)
        form = wanted.jump.form if _is_plain(wanted, table, (start, end), target) else None
        yield FoundJump(wanted.hook, place, FoundRule(form, packets, octets))


def _is_plain(wanted: ChainForm, table: RawTable, place: tuple[int, int], target: int) -> bool:
    """Whether the jump is of the wanted form: it has a comment, and asks for nothing."""
    layout, (start, _) = layout_of(table.version), place
    first = start + layout.elements
    size = int.from_bytes(table.entries[first : first + 2], sys.byteorder)
    name = table.entries[first + 2 : first + ELEMENT - 1].partition(b"\0")[0]
    text = table.entries[first + ELEMENT : target].partition(b"\0")[0].decode(errors="replace")
    is_goto = table.entries[start + layout.flags] & _GOTO[table.version]
    is_alone = name == b"comment" and first + size == target and text == wanted.comment
    return is_alone and not is_goto and _hook_rule(table, wanted.hook, place, {}).asks is Asks.NOTHING
