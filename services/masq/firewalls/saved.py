"""What iptables-save prints, read. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.masq.firewalls.bare import BareRule, bare_set
from services.masq.firewalls.messages import ChainForm, RuleForm
from services.masq.firewalls.repair import FoundChain, FoundJump, FoundRule

_RULE: Final = re.compile(r"\[(\d+):(\d+)\] (-A (\S+) .*)")
_COUNTERS: Final = re.compile(r" -c (\d+) (\d+)(?= -[jg] |$)")
_BARE: Final = re.compile(
    r'-A \S+(?: (! )?-s (\S+))?(?: (! )?-d (\S+))?(?: -m comment --comment (?:"[^"]*"|\S+))?'
    r" -j (RETURN|ACCEPT|MASQUERADE)(?: --random-fully)?"
)
_TARGET: Final = re.compile(r" (?:-j|-g) (\S+)")


@dataclass(frozen=True, slots=True)
class SavedRule:
    """One line, without its counters."""

    text: str
    packets: int
    bytes: int

    @property
    def target(self) -> str:
        """Where it goes; empty: nowhere."""
        found = _TARGET.search(re.sub(r'"(?:[^"\\]|\\.)*"', "", self.text))
        return found[1] if found else ""


def read_chain(text: str) -> list[SavedRule]:
    """One chain of `iptables -v -S CHAIN`, which puts the counters before the target."""
    rules = []
    for line in text.splitlines():
        if line.startswith("-A "):
            counters = _COUNTERS.search(line)
            packets, octets = (int(counters[1]), int(counters[2])) if counters else (0, 0)
            rules.append(SavedRule(_COUNTERS.sub("", line, count=1), packets, octets))
    return rules


SavedTable = Mapping[str, Sequence[SavedRule]]
"""The rules of every chain, by its name."""


def read_table(text: str) -> SavedTable:
    """One table of `iptables-save -c`."""
    chains: dict[str, list[SavedRule]] = {}
    for line in text.splitlines():
        if line.startswith(":"):
            chains.setdefault(line[1:].partition(" ")[0], [])
        elif rule := _RULE.match(line):
            chains.setdefault(rule[4], []).append(SavedRule(rule[3], int(rule[1]), int(rule[2])))
    return chains


def find(table: SavedTable, wanted: ChainForm) -> FoundChain:
    """Everything in the table that has to do with the chain; jumps in its hook, in all chains if it shall go."""
    rules = table.get(wanted.name)
    callers = [wanted.hook] if wanted.rules else list(table)
    jumps = [
        FoundJump(caller, position, _found(rule))
        for caller in callers
        for position, rule in enumerate(table.get(caller, ()))
        if rule.target == wanted.name
    ]
    hook = table.get(wanted.hook, ())
    in_the_way = hook[0].text if hook and hook[0].target != wanted.name else ""
    old = bare_set(wanted.table, [bare_rule(rule.text) for rule in hook]) if wanted.replaces_bare else []
    return FoundChain(
        None if rules is None else tuple(map(_found, rules)),
        tuple(jumps),
        tuple(FoundJump(wanted.hook, place, _found(hook[place])) for place in old),
        in_the_way,
    )


def bare_rule(text: str) -> BareRule | None:
    """The rule, if it asks for addresses only."""
    found = _BARE.fullmatch(text)
    if not found:
        return None
    not_source, source, not_destination, destination, target = (part or "" for part in found.groups())
    return BareRule(f"{not_source.strip()}{source}", f"{not_destination.strip()}{destination}", target)


def as_text(form: ChainForm) -> ChainForm:
    """The chain, with rules that are compared by their text alone."""
    rules = tuple(RuleForm({"text": rule.text}, rule.text) for rule in form.rules)
    jump = RuleForm({"text": form.jump.text}, form.jump.text)
    return ChainForm(form.table, form.hook, form.name, jump, rules, form.moved)


def _found(rule: SavedRule) -> FoundRule:
    return FoundRule({"text": rule.text}, rule.packets, rule.bytes)
