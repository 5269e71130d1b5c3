"""From one of our chains as it was found to what puts it right. Pure; the worker carries it out."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from services.masq.firewalls.difference import MISSING, NOT_WANTED, OLD, causes
from services.masq.firewalls.messages import ChainForm, Form, RuleForm
from services.masq.moves import NOT_FIRST


@dataclass(frozen=True, slots=True)
class FoundRule:
    """A rule in the table."""

    form: Form | None
    """None: of a kind that we cannot read, so not ours."""
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FoundJump:
    """A rule in somebody's chain that goes to ours."""

    chain: str
    position: int
    """0 is first."""
    rule: FoundRule


@dataclass(frozen=True, slots=True)
class FoundChain:
    """Everything in a table that has to do with one of our chains."""

    rules: tuple[FoundRule, ...] | None
    """None: the chain does not exist."""
    jumps: tuple[FoundJump, ...] = ()
    bare: tuple[FoundJump, ...] = ()
    """Rules of an old flanneld in the hook: what our chain decides, without a chain."""
    first_in_hook: str = ""
    """The first rule of the hook, as text, unless that is a jump to ours."""
    places: tuple[int, ...] = ()
    """Of our rules in the chain, if there are others."""
    others: tuple[FoundJump, ...] = ()
    """Rules of other networks in the chain, which are not among `rules`."""


@dataclass(frozen=True, slots=True)
class MakeChain:
    """A new chain, empty."""

    chain: str

    def __str__(self) -> str:
        return f"-N {self.chain}"


@dataclass(frozen=True, slots=True)
class EmptyChain:
    """Every rule of the chain goes."""

    chain: str

    def __str__(self) -> str:
        return f"-F {self.chain}"


@dataclass(frozen=True, slots=True)
class RemoveChain:
    """The chain goes; nothing jumps to it any more."""

    chain: str

    def __str__(self) -> str:
        return f"-X {self.chain}"


@dataclass(frozen=True, slots=True)
class Append:
    """The rule comes last."""

    chain: str
    rule: RuleForm

    def __str__(self) -> str:
        return self.rule.text


@dataclass(frozen=True, slots=True)
class InsertFirst:
    """The rule comes before all others."""

    chain: str
    rule: RuleForm

    def __str__(self) -> str:
        return self.rule.text.replace(f"-A {self.chain}", f"-I {self.chain} 1", 1)


@dataclass(frozen=True, slots=True)
class DeleteAt:
    """The rule at this place goes."""

    chain: str
    position: int
    """0 is first, at the time when it is this action's turn."""

    def __str__(self) -> str:
        return f"-D {self.chain} {self.position + 1}"


Action: TypeAlias = MakeChain | EmptyChain | RemoveChain | Append | InsertFirst | DeleteAt


@dataclass(frozen=True, slots=True)
class Repair:
    """What is wrong, and what puts it right, in order. Both empty: nothing."""

    causes: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()


def repair_of(wanted: ChainForm, found: FoundChain) -> Repair:
    """What brings a chain and its jump to what is wanted.

    Touches our chain and jumps to it only. A chain that differs is written anew as a whole, but for rules of other
    networks, which stay behind ours; a jump that is right keeps its place and its counters.
    """
    if not wanted.rules:
        return _removal(wanted, found)
    chain_causes = _chain_causes([rule.form for rule in wanted.rules], found)
    actions: list[Action] = []
    if chain_causes and found.others:
        actions += [DeleteAt(wanted.name, place) for place in reversed(found.places)]
        actions += [InsertFirst(wanted.name, rule) for rule in reversed(wanted.rules)]
    elif chain_causes:
        actions.append(MakeChain(wanted.name) if found.rules is None else EmptyChain(wanted.name))
        actions += [Append(wanted.name, rule) for rule in wanted.rules]
    right = next((jump for jump in found.jumps if _is_right(wanted, jump)), None)
    in_hook = [jump for jump in found.jumps if jump.chain == wanted.hook]
    actions += _deletions([*(jump for jump in in_hook if jump is not right), *found.bare])
    if right is None:
        actions.append(InsertFirst(wanted.hook, wanted.jump))
    return Repair((*chain_causes, *_jump_causes(wanted, in_hook), *_old_causes(found)), tuple(actions))


def _removal(wanted: ChainForm, found: FoundChain) -> Repair:
    if found.others:  # they need the chain and the jump
        ours = [DeleteAt(wanted.name, place) for place in reversed(found.places)]
        causes_of_ours = (NOT_WANTED,) if ours else ()
        return Repair((*causes_of_ours, *_old_causes(found)), (*ours, *_deletions(found.bare)))
    actions: list[Action] = [*_deletions([*found.jumps, *found.bare])]
    if found.rules is None:
        return Repair(_old_causes(found), tuple(actions))
    if found.rules:
        actions.append(EmptyChain(wanted.name))
    return Repair((NOT_WANTED, *_old_causes(found)), (*actions, RemoveChain(wanted.name)))


def _old_causes(found: FoundChain) -> tuple[str, ...]:
    return (OLD,) if found.bare else ()


def _deletions(jumps: Iterable[FoundJump]) -> list[Action]:
    """The last one first, so that the positions of the others hold."""
    return [DeleteAt(j.chain, j.position) for j in sorted(jumps, key=lambda j: (j.chain, -j.position))]


def _is_right(wanted: ChainForm, jump: FoundJump) -> bool:
    return jump.chain == wanted.hook and jump.position == 0 and jump.rule.form == wanted.jump.form


def _chain_causes(wanted: list[Form], found: FoundChain) -> list[str]:
    if found.rules is None:
        return [MISSING]
    return causes([_key(form) for form in wanted], [_key(rule.form) for rule in found.rules])


def _jump_causes(wanted: ChainForm, in_hook: list[FoundJump]) -> list[str]:
    if not in_hook:
        return ["jump missing"]
    exact = [jump for jump in in_hook if jump.rule.form == wanted.jump.form]
    sentences = [
        ("jump different", len(exact) < len(in_hook)),
        ("jump duplicated", len(exact) > 1),
        (NOT_FIRST, bool(exact) and exact[0].position > 0),
    ]
    return [sentence for sentence, holds in sentences if holds]


def _key(form: Form | None) -> str:
    """A dictionary cannot be counted; its text can."""
    return "" if form is None else json.dumps(form, sort_keys=True)
