"""A table as iptables-save prints it, and what a firewall has to find there."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from flannelette.services.masq.diagnose.jump_place import Span, span_of
from flannelette.services.masq.diagnose.verdict import Condition, Effect, ForeignRule
from flannelette.services.masq.diagnose.xt_rules import LOGS, UNKNOWN
from flannelette.services.masq.firewalls.iptables import ChainForm, FoundChain, FoundJump
from flannelette.services.masq.firewalls.iptables_nft import found_chain, found_rule, without_counters

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
    hook = table.get(wanted.hook, ())
    return found_chain(wanted, table.get(wanted.name), tuple(jumps), _span(table, wanted), hook)


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
