"""Where the jump to our chain may stand among the rules of other programs in a chain of the kernel's. Pure.

Our chain overrides no rule of anybody: the jump is appended, as flanneld appends it. What it is for is the policy of
the chain, and a policy may also be written as the last rules of the chain, which end every packet that comes so far:
an unconditional REJECT or DROP, several of them, a REJECT for each protocol, a jump to a chain that only refuses.
The jump stands before these alone, and before the rules that log what they refuse.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, TypeAlias

from flannelette.services.masq.diagnose.verdict import Condition, Effect, ForeignRule

LOGS: Final = frozenset(("LOG", "NFLOG", "ULOG"))
_TARGETS: Final = {Effect.ACCEPT: "ACCEPT", Effect.RETURN: "RETURN"}
_REFUSALS: Final = frozenset(("DROP", "REJECT"))
_ENDS: Final = {"filter": (*_REFUSALS, "RETURN"), "nat": ("ACCEPT", "RETURN")}
"""Targets by table that, in a rule without conditions, end every packet as the policy of the chain does."""
_DEEPEST: Final = 16
"""Largest depth of chains that are followed: iptables forbids loops, but the chains are not read at one moment."""


class Asks(Enum):
    """What a rule asks of a packet before it acts."""

    NOTHING = auto()
    """No condition; a comment is none."""
    PROTOCOL = auto()
    """A condition on the protocol above IP, and no other."""
    MORE = auto()


@dataclass(frozen=True, slots=True)
class HookRule:
    """A rule of another program, as far as the place of our jump depends on it."""

    text: str
    """The rule as a person would look for it."""
    target: str
    """`DROP`, `LOG`, ...; empty: none, or one that is not known."""
    asks: Asks
    chain: str = ""
    """The chain that it jumps to; empty: none."""


def hook_rule_of(rule: ForeignRule, *, is_log: bool | None = None) -> HookRule:
    """The part of a rule that counts here. `is_log`: whether all that it does is to log; None: its text tells."""
    chain = rule.target if rule.kind in (Effect.JUMP, Effect.GOTO) else ""
    last = rule.text.rpartition(" ")[2].upper()
    target = last if rule.kind is Effect.DROP else _TARGETS.get(rule.kind, "")
    if is_log or (is_log is None and rule.kind is Effect.NOTHING and last in LOGS):
        target = "LOG"
    return HookRule(rule.text, target, asks_of(rule.conditions), chain)


def asks_of(conditions: Sequence[Condition]) -> Asks:
    """What a rule with these conditions asks for."""
    if not conditions:
        return Asks.NOTHING
    is_protocol = all(replace(each, protocol=None) == Condition() for each in conditions)
    return Asks.PROTOCOL if is_protocol else Asks.MORE


ChainOf: TypeAlias = Callable[[str], Sequence[HookRule] | None]
"""Returns the rules of a chain; None: there is no chain of this name."""


@dataclass(frozen=True, slots=True)
class Span:
    """The places where our jump may stand: numbers of rules of other programs that come before it."""

    first: int
    last: int
    best: int
    """The place that a jump gets if there is none yet."""
    size: int
    """The number of rules of other programs in the chain."""
    before: str = ""
    """The last rule that has to come before the jump, as text; empty: there is none."""
    after: str = ""
    """The first rule of those that the jump has to come before; empty: there is none."""


def span_of(table: str, count: int, rule_at: Callable[[int], HookRule], chain_of: ChainOf) -> Span:
    """The places for the jump among this number of rules of other programs. Only the last rules are read."""
    place, catch_all = count, None
    while place > 0:
        rule = rule_at(place - 1)
        if _is_catch_all(table, rule, chain_of):
            catch_all = place - 1
        elif not _only_logs(rule, chain_of):
            break
        place -= 1
    before = rule_at(place - 1).text if place else ""
    if catch_all is None:
        return Span(place, count, count, count, before)
    best = catch_all
    while best > place and _logs(rule_at(best - 1), chain_of):
        best -= 1
    return Span(place, catch_all, best, count, before, rule_at(catch_all).text)


def _is_catch_all(table: str, rule: HookRule, chain_of: ChainOf) -> bool:
    """Whether it is a policy in the form of a rule, or a part of one."""
    if rule.asks is Asks.PROTOCOL:
        return table == "filter" and rule.target == "REJECT"  # each protocol has an answer of its own
    if rule.asks is Asks.MORE:
        return False
    return rule.target in _ENDS[table] or (table == "filter" and _only_refuses(rule.chain, chain_of))


def _only_refuses(chain: str, chain_of: ChainOf, depth: int = 0) -> bool:
    """Whether no packet leaves the chain: each is dropped or rejected by one of its rules."""
    rules = chain_of(chain) if chain and depth <= _DEEPEST else None
    if rules is None:
        return False
    for rule in rules:
        refuses = rule.target in _REFUSALS or _only_refuses(rule.chain, chain_of, depth + 1)
        if refuses and rule.asks is Asks.NOTHING:
            return True
        if not refuses and not _only_logs(rule, chain_of, depth + 1):
            return False
    return False


def _only_logs(rule: HookRule, chain_of: ChainOf, depth: int = 0) -> bool:
    """Whether it decides nothing and changes nothing, also as a jump to a chain that is empty."""
    if rule.target in LOGS:
        return True
    rules = chain_of(rule.chain) if rule.chain and depth <= _DEEPEST else None
    return rules is not None and all(_only_logs(each, chain_of, depth + 1) for each in rules)


def _logs(rule: HookRule, chain_of: ChainOf) -> bool:
    return _only_logs(rule, chain_of) and (rule.target in LOGS or bool(chain_of(rule.chain)))
