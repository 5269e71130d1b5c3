"""What iptables-save prints, read. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from flannelette.services.masq.diagnose.jump_place import Asks, HookRule, Span, span_of
from flannelette.services.masq.firewalls.iptables.old_flannel import BareRule, bare_set
from flannelette.services.masq.firewalls.iptables.repair import FoundChain, FoundJump, FoundRule, without_others
from flannelette.services.masq.firewalls.iptables.rule_syntax import ChainForm

_RULE: Final = re.compile(r"\[\d+:\d+\] -A (\S+)")
_COUNTERS: Final = re.compile(r"^\[(\d+):(\d+)\] | -c (\d+) (\d+)(?= -[jg] |$)")
_BARE: Final = re.compile(
    r'(?:\[\d+:\d+\] )?-A \S+(?: (! )?-s (\S+))?(?: (! )?-d (\S+))?(?: -m comment --comment (?:"[^"]*"|\S+))?'
    r"(?: -c \d+ \d+)? -j (RETURN|ACCEPT|MASQUERADE)(?: --random-fully)?"
)
_TARGET: Final = re.compile(r" (?:-j|-g) (\S+)")
_ASKS_NOTHING: Final = re.compile(r"-A \S+( -p \S+)?( -m comment --comment \S+)?( -[jg] .*)?")
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')

NOT_PRINTED: Final = "-A ... -m nft"
"""Mark in place of the rules of a chain that the program does not print."""

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
    """Finds a chain of ours, and the jumps to it: those in its hook, or in all chains if the chain is
    to be removed.
    """
    callers = [wanted.hook] if wanted.rules else list(table)
    jumps = [
        FoundJump(caller, position, _found(line))
        for caller in callers
        for position, line in enumerate(table.get(caller, ()))
        if wanted.name in line and _target(line) == wanted.name
    ]
    hook = table.get(wanted.hook, ())
    return found_chain(wanted, table.get(wanted.name), tuple(jumps), _span(table, wanted), hook)


def found_chain(
    wanted: ChainForm, ours: Sequence[str] | None, jumps: tuple[FoundJump, ...], span: Span, hook: Sequence[str]
) -> FoundChain:
    """The state of a chain, from the lines of its rules (None: there is no chain) and the jumps to it.

    `hook` are the lines in which rules of an old flanneld are searched.
    """
    # Of thousands of foreign rules none is looked at unless one has a destination, as one of each set has.
    may_be_old = wanted.replaces_old and any(" -d " in line for line in hook)
    old = bare_set(wanted.table, [bare_rule(line) for line in hook], wanted.networks) if may_be_old else []
    bare = tuple(FoundJump(wanted.hook, place, _found(hook[place])) for place in old)
    rules = None if ours is None else tuple(map(_found, ours))
    is_readable = ours is None or NOT_PRINTED not in ours
    return without_others(wanted, FoundChain(rules, jumps, bare, span, is_readable=is_readable))


def _span(table: SavedTable, wanted: ChainForm) -> Span:
    others = [line for line in table.get(wanted.hook, ()) if _target(line) != wanted.name]

    def chain_of(name: str) -> list[HookRule] | None:
        return None if name not in table else [hook_rule(line) for line in table[name]]

    return span_of(wanted.table, len(others), lambda place: hook_rule(others[place]), chain_of)


def hook_rule(line: str) -> HookRule:
    """The rule, as far as the place of our jump depends on it."""
    text = without_counters(line)
    asked = _ASKS_NOTHING.fullmatch(_QUOTED.sub("-", text))
    asks = Asks.MORE if asked is None else Asks.PROTOCOL if asked[1] else Asks.NOTHING
    target = _target(line)
    return HookRule(text, target, asks, target)


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
    found = _TARGET.search(_QUOTED.sub("", line))
    return found[1] if found else ""
