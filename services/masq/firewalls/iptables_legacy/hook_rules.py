"""The rules of a chain of a legacy table, from the kernel's bytes, as far as our jump and its place depend on them.

python-iptables would walk over every rule before the jump, and the extensions of some may not be installed.
"""

import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from flannelette.services.masq.diagnose.jump_place import Span, span_of
from flannelette.services.masq.diagnose.verdict import Condition, Effect, ForeignRule
from flannelette.services.masq.diagnose.xt_rules import matches_of, rule_of, target_of
from flannelette.services.masq.firewalls.flannelds import BareRule
from flannelette.services.masq.firewalls.iptables import ChainForm, FoundJump, FoundRule, others_than
from flannelette.services.masq.kernel.legacy_tables import ELEMENT, LAYOUTS, RawTable

_PLAIN_OPTIONS: Final = (0, 1 << 4)
"""Flags of MASQUERADE: none, or NF_NAT_RANGE_PROTO_RANDOM_FULLY."""


def jumps_and_span(wanted: ChainForm, table: RawTable) -> tuple[tuple[FoundJump, ...], Span]:
    """The jumps to our chain in its hook, and where one may stand."""
    chains = table.chains()
    names = {chain.start: name for name, chain in chains.items()}
    entries = {name: [table.entries[slice(*place)] for place in chain.rules] for name, chain in chains.items()}
    rules = entries.get(wanted.hook, [])
    jumps = tuple(_jumps(wanted, table.version, rules, names)) if wanted.name in chains else ()
    read = partial(rule_of, table.version, wanted.hook, names=names)

    def chain_of(name: str) -> Sequence[ForeignRule] | None:
        return list(map(read, entries[name])) if name in entries else None

    return jumps, span_of(wanted.table, others_than(jumps, rules), read, chain_of)


def bare_rules(table: RawTable, hook: str) -> list[BareRule | None]:
    """Returns the rules of a hook's chain that ask for addresses only.

    None: another rule, or one about a network that the chain does not name both as a source and as a destination.
    """
    size, chains = LAYOUTS[table.version].address, table.chains()
    entries = [table.entries[slice(*place)] for place in chains[hook].rules] if hook in chains else []
    ends = [struct.unpack_from(f"={size}s{size}s{size}s{size}s", entry) for entry in entries]
    sources, destinations = [(each[0], each[2]) for each in ends], [(each[1], each[3]) for each in ends]
    both = {*sources} & {*destinations} - {(bytes(size), bytes(size))}
    return [
        _bare_rule(table.version, hook, entry) if {*pair} & both else None
        for entry, pair in zip(entries, zip(sources, destinations, strict=True), strict=True)
    ]


def _bare_rule(version: int, hook: str, entry: bytes) -> BareRule | None:
    rule, ends = rule_of(version, hook, entry, {}), {True: "", False: ""}
    flags_at = target_of(version, entry) + ELEMENT + (4 if version == 4 else 0)
    if rule.kind is Effect.TRANSLATE and int.from_bytes(entry[flags_at:][:4], sys.byteorder) not in _PLAIN_OPTIONS:
        return None
    for each in rule.conditions:
        network = each.source or each.destination
        if network is None or replace(each, source=None, destination=None, negated=False) != Condition():
            return None
        ends[each.source is not None] = f"{'!' if each.negated else ''}{network}"
    return BareRule(ends[True], ends[False], rule.target)


def _jumps(wanted: ChainForm, version: int, rules: Sequence[bytes], names: Mapping[int, str]) -> Iterator[FoundJump]:
    """Yields the jumps to our chain. Of thousands of foreign rules, only those are decoded that may be one."""
    places = [struct.pack("=i", start) for start, name in names.items() if name == wanted.name]
    for place, entry in enumerate(rules):
        rule = rule_of(version, wanted.hook, entry, names) if any(each in entry for each in places) else None
        if rule is not None and rule.target == wanted.name:
            packets, octets = struct.unpack_from("=QQ", entry, LAYOUTS[version].counters)
            form = wanted.jump.form if _is_plain(wanted, rule, version, entry) else None
            yield FoundJump(wanted.hook, place, FoundRule(form, packets, octets))


def _is_plain(wanted: ChainForm, rule: ForeignRule, version: int, entry: bytes) -> bool:
    """Whether a jump is of the wanted form: it has a comment, and asks for nothing."""
    comments = [(name, data.partition(b"\0")[0]) for name, _, data in matches_of(version, entry)]
    is_alone = comments == [("comment", wanted.comment.encode())]
    return is_alone and rule.kind is Effect.JUMP and not rule.conditions
