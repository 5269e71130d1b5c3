"""A table as iptables-save prints it, and what a firewall has to find there."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from flannelette.services.masq.diagnose.jump_place import Span, span_of
from flannelette.services.masq.diagnose.verdict import Condition, Effect, ForeignRule
from flannelette.services.masq.diagnose.xt_rules import LOGS, UNKNOWN
from flannelette.services.masq.firewalls.flannelds import BareRule, bare_set
from flannelette.services.masq.firewalls.iptables import ChainForm, FoundChain, FoundJump, FoundRule, without_others

_COUNTERS: Final = re.compile(r"^\[(\d+):(\d+)\] | -c (\d+) (\d+)(?= -[jg] |$)")
_BARE: Final = re.compile(
    r'(?:\[\d+:\d+\] )?-A \S+(?: (! )?-s (\S+))?(?: (! )?-d (\S+))?(?: -m comment --comment (?:"[^"]*"|\S+))?'
    r"(?: -c \d+ \d+)? -j (RETURN|ACCEPT|MASQUERADE)(?: --random-fully)?"
)
_RULE: Final = re.compile(r"\[\d+:\d+\] -A (\S+)")
_TARGET: Final = re.compile(r" (?:-j|-g) (\S+)")
_ASKS_NOTHING: Final = re.compile(r"-A \S+( -p \S+)?( -m comment --comment \S+)?( -[jg] .*)?")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_KINDS: Final = {
    "ACCEPT": Effect.ACCEPT,
    "RETURN": Effect.RETURN,
    "DROP": Effect.DROP,
    "REJECT": Effect.DROP,
    **dict.fromkeys(LOGS, Effect.NOTHING),
}

SavedTable = Mapping[str, Sequence[str]]
"""The lines of every chain's rules, by its name. They are as they were printed: of thousands few are of interest."""


def read_table(text: str) -> SavedTable:
    """One table of `iptables-save -c`, which puts them before the rule."""
    chains: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith(":"):
            chains.setdefault(line[1:].partition(" ")[0], [])
        elif rule := _RULE.match(line):
            chains.setdefault(rule[1], []).append(line)
    return chains


def find(table: SavedTable, wanted: ChainForm) -> FoundChain:
    """Finds a chain of ours, and the jumps to it: those in its hook, or in all chains if the chain is
    to be removed.
    """
    callers = [wanted.hook] if wanted.rules else list(table)
    jumps = [
        FoundJump(caller, position, found_rule(line))
        for caller in callers
        for position, line in enumerate(table.get(caller, ()))
        if wanted.name in line and _target(line) == wanted.name
    ]
    hook, ours = table.get(wanted.hook, ()), table.get(wanted.name)
    old = bare_set(wanted.table, list(map(bare_rule, hook)), wanted.networks) if wanted.replaces_old else []
    bare = tuple(FoundJump(wanted.hook, place, found_rule(hook[place])) for place in old)
    rules = None if ours is None else tuple(map(found_rule, ours))
    return without_others(wanted, FoundChain(rules, tuple(jumps), bare, _span(table, wanted)))


def bare_rule(text: str) -> BareRule | None:
    """The rule, if it asks for addresses only."""
    found = _BARE.fullmatch(text)
    if not found:
        return None
    not_source, source, not_destination, destination, target = (part or "" for part in found.groups())
    return BareRule(f"{not_source.strip()}{source}", f"{not_destination.strip()}{destination}", target)


def found_rule(line: str) -> FoundRule:
    """The rule of a line, with its counters."""
    counters = _COUNTERS.search(line)
    packets, octets = (int(number) for number in counters.groups() if number) if counters else (0, 0)
    return FoundRule(without_counters(line), packets, octets)


def without_counters(line: str) -> str:
    """The rule of a line, without its counters."""
    return _COUNTERS.sub("", line, count=1)


def read_chain(text: str) -> list[str]:
    """One chain of `iptables -v -S CHAIN`, which puts the counters before the target."""
    return [line for line in text.splitlines() if line.startswith("-A ")]


def _span(table: SavedTable, wanted: ChainForm) -> Span:
    others = [line for line in table.get(wanted.hook, ()) if _target(line) != wanted.name]

    def chain_of(name: str) -> list[ForeignRule] | None:
        return None if name not in table else [hook_rule(line) for line in table[name]]

    return span_of(wanted.table, others, hook_rule, chain_of)


def hook_rule(line: str) -> ForeignRule:
    """The rule, as far as the place of our jump depends on it."""
    text, target = without_counters(line), _target(line)
    asked = _ASKS_NOTHING.fullmatch(_QUOTED.sub("-", text))
    conditions = (UNKNOWN,) if asked is None else (Condition(protocol=6),) if asked[1] else ()
    kind = _KINDS.get(target, Effect.JUMP if target else Effect.UNKNOWN)
    text = f"... {target}" if kind is Effect.DROP else text
    return ForeignRule(text, conditions, kind, target, only_logs=target in LOGS)


def _target(line: str) -> str:
    """Where it goes; empty: nowhere."""
    found = _TARGET.search(_QUOTED.sub("", line))
    return found[1] if found else ""
