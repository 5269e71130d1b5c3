"""Where the jump to our chain may stand among the rules of other programs in a chain of the kernel's. Pure.

Our chain overrides no rule of anybody: the jump is appended, as flanneld appends it. What it is for is the policy of
the chain, and a policy may also be written as the last rules of the chain, which end every packet that comes so far:
an unconditional REJECT or DROP, several of them, a REJECT for each protocol, a jump to a chain that only refuses.
The jump stands before these alone, and before the rules that log what they refuse.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from flannelette.services.core.frozen import frozen
from flannelette.services.masq.diagnose.verdict import Condition, Effect, ForeignRule

_REFUSALS: Final = frozenset(("DROP", "REJECT"))
_DEEPEST: Final = 16
"""Largest depth of chains that are followed: iptables forbids loops, but the chains are not read at one moment."""

T = TypeVar("T")
ChainOf: TypeAlias = Callable[[str], Sequence[ForeignRule] | None]
"""Returns the rules of a chain; None: there is no chain of this name."""


@frozen
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


def span_of(table: str, rules: Sequence[T], read: Callable[[T], ForeignRule], chain_of: ChainOf) -> Span:
    """The places for the jump among these rules of other programs, of which only the last are read."""
    size = place = len(rules)
    catch_all = None
    while place > 0:
        rule = read(rules[place - 1])
        if _is_catch_all(table, rule, chain_of):
            catch_all = place - 1
        elif not _only_logs(rule, chain_of):
            break
        place -= 1
    before = read(rules[place - 1]).text if place else ""
    if catch_all is None:
        return Span(place, size, size, size, before)
    best = catch_all
    while best > place and _logs(read(rules[best - 1]), chain_of):
        best -= 1
    return Span(place, catch_all, best, size, before, read(rules[catch_all]).text)


def _is_catch_all(table: str, rule: ForeignRule, chain_of: ChainOf) -> bool:
    """Whether it is a policy in the form of a rule, or a part of one."""
    if rule.conditions:  # each protocol has an answer of its own
        is_of_protocol = all(replace(each, protocol=None) == Condition() for each in rule.conditions)
        return table == "filter" and is_of_protocol and _refusal(rule) == "REJECT"
    if table == "filter":
        return rule.kind is Effect.RETURN or bool(_refusal(rule)) or _only_refuses(_next(rule), chain_of)
    return rule.kind in (Effect.ACCEPT, Effect.RETURN)


def _refusal(rule: ForeignRule) -> str:
    """`DROP` or `REJECT`, if it does that; else empty."""
    word = rule.text.rpartition(" ")[2].upper()
    return word if rule.kind is Effect.DROP and word in _REFUSALS else ""


def _next(rule: ForeignRule) -> str:
    """The chain that it jumps or goes to; empty: none."""
    return rule.target if rule.kind in (Effect.JUMP, Effect.GOTO) else ""


def _only_refuses(chain: str, chain_of: ChainOf, depth: int = 0) -> bool:
    """Whether no packet leaves the chain: each is dropped or rejected by one of its rules."""
    rules = chain_of(chain) if chain and depth <= _DEEPEST else None
    for rule in rules or ():
        refuses = _refusal(rule) or _only_refuses(_next(rule), chain_of, depth + 1)
        if refuses and not rule.conditions:
            return True
        if not refuses and not _only_logs(rule, chain_of, depth + 1):
            return False
    return False


def _only_logs(rule: ForeignRule, chain_of: ChainOf, depth: int = 0) -> bool:
    """Whether it decides nothing and changes nothing, also as a jump to a chain that is empty."""
    chain = _next(rule)
    rules = chain_of(chain) if chain and depth <= _DEEPEST else None
    return rule.only_logs or (rules is not None and all(_only_logs(each, chain_of, depth + 1) for each in rules))


def _logs(rule: ForeignRule, chain_of: ChainOf) -> bool:
    return _only_logs(rule, chain_of) and (rule.only_logs or bool(chain_of(_next(rule))))
