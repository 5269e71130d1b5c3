"""The difference between a desired chain and what was found of it in a table, and the repair. Pure."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from services.core.family import Network
from services.masq.firewalls.firewall import (
    CHAIN_MISSING,
    JUMP_NOT_FIRST,
    NOT_WANTED,
    OLD_RULES,
    ChainState,
    RuleState,
    differences,
)
from services.masq.firewalls.iptables.rule_syntax import ChainForm, Form, RuleForm, form_text
from services.masq.rules.model import Chain
from services.masq.rules.other_networks import addresses_in, is_another_network, parse_all

_OF_FLANNEL: Final = re.compile(
    r'-A \S+(?: (?:! )?-[sd] \S+)*(?: -m mark --mark \S+)? -m comment --comment "[^"\\]*" -j \S+(?: --random-fully)?'
)
"""A rule as flannel writes it. iptables-nft finds it by its text, but no rule with `-m recent`, for example."""


@dataclass(frozen=True, slots=True)
class FoundRule:
    """A rule in the table."""

    form: Form | None
    """None: of a kind that we cannot read, so not ours."""
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FoundJump:
    """A rule in another chain that jumps to ours."""

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
    """The places of our rules in the chain, if it is known which networks are ours."""
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
class DeleteRule:
    """One rule goes."""

    chain: str
    position: int
    """The place of the rule, 0 is first: when it is this action's turn, or with a text when it was read."""
    text: str = ""
    """The rule as iptables-save prints it, which goes wherever another program has moved it since it was read. Empty:
    the rule at `position` goes."""

    def __str__(self) -> str:
        return self.text.replace("-A", "-D", 1) or f"-D {self.chain} {self.position + 1}"


Action: TypeAlias = MakeChain | EmptyChain | RemoveChain | Append | InsertFirst | DeleteRule


@dataclass(frozen=True, slots=True)
class Repair:
    """What is wrong, and what puts it right, in order. Both empty: nothing."""

    causes: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()


def repair_of(wanted: ChainForm, found: FoundChain) -> Repair:
    """What brings a chain and its jump to what is wanted.

    Touches our chain and jumps to it only. A chain that differs is written anew as a whole, but for rules of other
    networks, which stay behind ours, also those that come after the reading; the only jump that is right keeps its
    place and its counters.
    """
    if not wanted.rules:
        return _removal(wanted, found)
    chain_causes = _chain_causes([rule.form for rule in wanted.rules], found)
    actions: list[Action] = []
    if chain_causes and found.rules is not None and wanted.networks is not None:
        actions += _deletions(wanted, _ours(wanted, found))
        actions += [InsertFirst(wanted.name, rule) for rule in reversed(wanted.rules)]
    elif chain_causes:
        actions.append(MakeChain(wanted.name) if found.rules is None else EmptyChain(wanted.name))
        actions += [Append(wanted.name, rule) for rule in wanted.rules]
    in_hook = [jump for jump in found.jumps if jump.chain == wanted.hook]
    exact = [jump for jump in in_hook if jump.rule.form == wanted.jump.form]
    right = exact[0] if len(exact) == 1 and exact[0].position == 0 else None
    actions += _deletions(wanted, [*(jump for jump in in_hook if jump is not right), *found.bare])
    if right is None:
        actions.append(InsertFirst(wanted.hook, wanted.jump))
    return Repair((*chain_causes, *_jump_causes(in_hook, exact), *_old_causes(found)), tuple(actions))


def chain_state(chain: Chain, wanted: ChainForm, before: FoundChain, found: FoundChain, program: str) -> ChainState:
    """The state of a chain that was found like this before the repair, if there was one, and after it."""
    first = repair_of(wanted, before)
    rules = found.rules or ()
    jump = next((j.rule for j in found.jumps if j.position == 0 and j.chain == wanted.hook), None)
    return ChainState(
        chain,
        _rule_state(chain, chain.hook, wanted.jump, jump),
        tuple(
            _rule_state(chain, chain.name, rule, rules[i] if i < len(rules) else None)
            for i, rule in enumerate(wanted.rules)
        ),
        first.causes,
        tuple(f"{program} -t {chain.table} {action}" for action in first.actions),
        as_wanted=not repair_of(wanted, found).actions,
        others=tuple(form_text(chain.name, other.rule.form or {}) for other in found.others),
        in_the_way=before.first_in_hook,
    )


def without_others(wanted: ChainForm, found: FoundChain) -> FoundChain:
    """What was found, with the rules of other networks apart from ours."""
    if wanted.networks is None or found.rules is None:
        return found
    rules = list(enumerate(found.rules))
    others = {place for place, rule in rules if rule.form and _is_anothers(rule.form, wanted)}
    if others and not wanted.rules:  # the rule about kube-proxy's mark is theirs as well
        others |= {place for place, rule in rules if rule.form and _is_of_no_network(rule.form, wanted)}
    return replace(
        found,
        rules=tuple(rule for place, rule in rules if place not in others),
        places=tuple(place for place, _ in rules if place not in others),
        others=tuple(FoundJump(wanted.name, place, rule) for place, rule in rules if place in others),
    )


def _is_anothers(form: Form, wanted: ChainForm) -> bool:
    networks = _networks_of(form, wanted)
    return networks is not None and is_another_network(networks, wanted.networks or ())


def _is_of_no_network(form: Form, wanted: ChainForm) -> bool:
    return _networks_of(form, wanted) == []


def _networks_of(form: Form, wanted: ChainForm) -> list[Network] | None:
    """The addresses in a rule of a flannel; None: it is none."""
    if "text" in form:
        has_comment = f'--comment "{wanted.comment}"' in form["text"]
        networks = addresses_in(form["text"])
    else:
        has_comment = form.get("comment", {}).get("comment") == wanted.comment
        networks = parse_all(form[key].lstrip("!") for key in ("src", "dst") if key in form)
    return networks if has_comment else None


def _rule_state(chain: Chain, name: str, wanted: RuleForm, found: FoundRule | None) -> RuleState:
    if found is None or found.form != wanted.form:
        return RuleState(chain.table, name, wanted.text, present=False)
    return RuleState(chain.table, name, wanted.text, True, found.packets, found.bytes)


def _removal(wanted: ChainForm, found: FoundChain) -> Repair:
    if found.others:  # they need the chain and the jump
        actions = _deletions(wanted, [*_ours(wanted, found), *found.bare])
        return Repair((*((NOT_WANTED,) if found.rules else ()), *_old_causes(found)), tuple(actions))
    ours_are_known = wanted.networks is not None
    ours = _ours(wanted, found) if ours_are_known else []
    actions = _deletions(wanted, [*found.jumps, *found.bare, *ours])
    if found.rules is None:
        return Repair(_old_causes(found), tuple(actions))
    if found.rules and not ours_are_known:
        actions.append(EmptyChain(wanted.name))
    return Repair((NOT_WANTED, *_old_causes(found)), (*actions, RemoveChain(wanted.name)))


def _old_causes(found: FoundChain) -> tuple[str, ...]:
    return (OLD_RULES,) if found.bare else ()


def _ours(wanted: ChainForm, found: FoundChain) -> list[FoundJump]:
    """The rules in our chain that are not of another network."""
    return [FoundJump(wanted.name, *each) for each in zip(found.places, found.rules or (), strict=True)]


def _deletions(wanted: ChainForm, rules: Iterable[FoundJump]) -> list[Action]:
    """The deletions of these rules: first those by place, from the last to the first, so that the places hold.

    A jump that stands in our own chain is found twice, and deleted once.
    """
    found = []
    for each in {(each.chain, each.position): each for each in rules}.values():
        text = (each.rule.form or {}).get("text", "")
        is_ours = f'--comment "{wanted.comment}"' in text and _OF_FLANNEL.fullmatch(text)
        found.append(DeleteRule(each.chain, each.position, text if is_ours else ""))
    return [*sorted(found, key=lambda each: (bool(each.text), each.chain, -each.position))]


def _chain_causes(wanted: list[Form], found: FoundChain) -> list[str]:
    if found.rules is None:
        return [CHAIN_MISSING]
    return differences([_key(form) for form in wanted], [_key(rule.form) for rule in found.rules])


def _jump_causes(in_hook: list[FoundJump], exact: list[FoundJump]) -> list[str]:
    """What is wrong with the jumps in the hook; `exact` are the jumps of the wanted form."""
    if not in_hook:
        return ["jump missing"]
    sentences = [
        ("jump different", len(exact) < len(in_hook)),
        ("jump duplicated", len(exact) > 1),
        (JUMP_NOT_FIRST, bool(exact) and exact[0].position > 0),
    ]
    return [sentence for sentence, holds in sentences if holds]


def _key(form: Form | None) -> str:
    """A dictionary cannot be counted; its text can."""
    return "" if form is None else json.dumps(form, sort_keys=True)
