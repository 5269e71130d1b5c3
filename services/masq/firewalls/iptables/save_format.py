"""What iptables-save prints, read. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from services.masq.firewalls.iptables.old_flannel import BareRule, bare_set
from services.masq.firewalls.iptables.repair import FoundChain, FoundJump, FoundRule, without_others
from services.masq.firewalls.iptables.rule_syntax import ChainForm

_RULE: Final = re.compile(r"\[\d+:\d+\] -A (\S+)")
_COUNTERS: Final = re.compile(r"^\[(\d+):(\d+)\] | -c (\d+) (\d+)(?= -[jg] |$)")
_BARE: Final = re.compile(
    r'(?:\[\d+:\d+\] )?-A \S+(?: (! )?-s (\S+))?(?: (! )?-d (\S+))?(?: -m comment --comment (?:"[^"]*"|\S+))?'
    r"(?: -c \d+ \d+)? -j (RETURN|ACCEPT|MASQUERADE)(?: --random-fully)?"
)
_TARGET: Final = re.compile(r" (?:-j|-g) (\S+)")

SavedTable = Mapping[str, Sequence[str]]
"""The lines of every chain's rules, by its name. They are as they were printed: of thousands few are of interest."""


def read_chain(text: str) -> list[str]:
    """One chain of `iptables -v -S CHAIN`, which puts the counters before the target."""
    return [line for line in text.splitlines() if line.startswith("-A ")]


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
    """Everything in the table that has to do with the chain; jumps in its hook, in all chains if it shall go."""
    rules = table.get(wanted.name)
    callers = [wanted.hook] if wanted.rules else list(table)
    jumps = [
        FoundJump(caller, position, _found(line))
        for caller in callers
        for position, line in enumerate(table.get(caller, ()))
        if wanted.name in line and _target(line) == wanted.name
    ]
    hook = table.get(wanted.hook, ())
    in_the_way = without_counters(hook[0]) if hook and _target(hook[0]) != wanted.name else ""
    # Of thousands of foreign rules none is looked at unless one has a destination, as one of each set has.
    may_be_old = wanted.replaces_old and any(" -d " in line for line in hook)
    old = bare_set(wanted.table, [bare_rule(line) for line in hook], wanted.networks) if may_be_old else []
    bare = tuple(FoundJump(wanted.hook, place, _found(hook[place])) for place in old)
    ours = None if rules is None else tuple(map(_found, rules))
    return without_others(wanted, FoundChain(ours, tuple(jumps), bare, in_the_way))


def bare_rule(text: str) -> BareRule | None:
    """The rule, if it asks for addresses only."""
    found = _BARE.fullmatch(text)
    if not found:
        return None
    not_source, source, not_destination, destination, target = (part or "" for part in found.groups())
    return BareRule(f"{not_source.strip()}{source}", f"{not_destination.strip()}{destination}", target)


def _found(line: str) -> FoundRule:
    counters = _COUNTERS.search(line)
    packets, octets = (int(number) for number in counters.groups() if number) if counters else (0, 0)
    return FoundRule({"text": without_counters(line)}, packets, octets)


def without_counters(line: str) -> str:
    """The rule of a line, without its counters."""
    return _COUNTERS.sub("", line, count=1)


def _target(line: str) -> str:
    """Where it goes; empty: nowhere."""
    found = _TARGET.search(re.sub(r'"(?:[^"\\]|\\.)*"', "", line))
    return found[1] if found else ""
