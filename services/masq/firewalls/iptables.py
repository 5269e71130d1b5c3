"""A chain of ours in iptables: its rules in two notations, the text of iptables-save and the dictionaries of
`iptc.easy`, its difference from what was found in a table, and the repair. Pure.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.masq.diagnose.jump_place import Span
from flannelette.services.masq.diagnose.verdict import Effect, ForeignRule
from flannelette.services.masq.firewalls.firewall import (
    CHAIN_MISSING,
    JUMP_MISPLACED,
    NOT_WANTED,
    OLD_RULES,
    ChainState,
    RuleState,
    differences,
)
from flannelette.services.masq.firewalls.flannelds import addresses_in, is_another_network, model_of
from flannelette.services.masq.rules import Chain, Rule

T = TypeVar("T")

Form: TypeAlias = dict[str, Any]
"""A rule as `iptc.easy` decodes it, without its counters: `{"src": "10.5.0.0/16", "target": "ACCEPT"}`."""


@frozen
class RuleForm:
    """One rule in both notations."""

    form: Form
    text: str
    """`-A CHAIN ...`, as iptables-save has it."""


@frozen
class ChainForm:
    """One desired chain, and the jump to it from a chain of the kernel's. No rules: neither shall exist."""

    table: str
    hook: str
    name: str
    jump: RuleForm
    rules: tuple[RuleForm, ...]
    comment: str = ""
    networks: tuple[Network, ...] | None = None
    """See Chain."""
    replaces_old: bool = False
    """See Chain."""
    by_text: bool = False
    """The program finds a rule that is to be deleted by its text, wherever another has moved it."""


def chain_form(chain: Chain, *, by_text: bool = False) -> ChainForm:
    """The chain with its jump, in both notations."""
    comment = {"comment": {"comment": chain.comment}}
    jump = RuleForm({**comment, "target": chain.name}, jump_text(chain.hook, chain.name, chain.comment))
    rules = tuple(RuleForm(_form(chain, rule), rule_text(chain.name, rule, chain.comment)) for rule in chain.rules)
    whose = chain.networks, chain.replaces_old
    return ChainForm(chain.table, chain.hook, chain.name, jump, rules, chain.comment, *whose, by_text=by_text)


def text_of(chain: str, rule: ForeignRule, comment: str) -> str:
    """The line that iptables-save prints for a rule of flannel's, or a jump to its chain; empty: it is another."""
    if not comment:
        return ""
    if rule.kind is Effect.JUMP and rule.is_exact and not rule.conditions:
        return jump_text(chain, rule.target, comment)
    model = model_of(rule)
    return rule_text(chain, model, comment) if model else ""


def jump_text(hook: str, chain: str, comment: str) -> str:
    """The line that iptables-save prints for the jump to a chain."""
    return f"-A {hook} {_comment_text(comment)} -j {chain}"


def rule_text(chain: str, rule: Rule, comment: str) -> str:
    """The line that iptables-save prints for it."""
    words = [f"-A {chain}"]
    words += [
        f"{'! ' if prefix.negated else ''}{option} {prefix.cidr}"
        for option, prefix in (("-s", rule.source), ("-d", rule.destination))
        if prefix
    ]
    if rule.mark:
        words.append(f"-m mark --mark {_mark_text(rule.mark)}")
    words.append(_comment_text(comment))
    words.append(f"-j {rule.action}")
    words += [f"--{name} {value}".rstrip() for name, value in _options(rule).items()]
    return " ".join(words)


def _form(chain: Chain, rule: Rule) -> Form:
    form: Form = {}
    for key, prefix in (("src", rule.source), ("dst", rule.destination)):
        if prefix:
            form[key] = f"{'!' if prefix.negated else ''}{prefix.cidr}"
    if rule.mark:
        form["mark"] = {"mark": _mark_text(rule.mark)}
    form["comment"] = {"comment": chain.comment}
    options = _options(rule)
    form["target"] = {str(rule.action): options} if options else str(rule.action)
    return form


def _options(rule: Rule) -> dict[str, str]:
    """The options of the target, in the order in which iptables-save prints them."""
    options = {"to-source": str(rule.pool)} if rule.pool else {}
    options |= {"random-fully": ""} if rule.fully_random else {}
    return options | ({"persistent": ""} if rule.pool and not rule.pool.is_one else {})


def _mark_text(mark: tuple[int, int]) -> str:
    return f"{mark[0]:#x}/{mark[1]:#x}"


def _comment_text(comment: str) -> str:
    return f'-m comment --comment "{comment}"'


_OF_FLANNEL: Final = re.compile(
    r'-A \S+(?: (?:! )?-[sd] \S+)*(?: -m mark --mark \S+)? -m comment --comment "[^"\\]*" -j \S+(?: --to-source \S+)?'
    r"(?: --random-fully)?(?: --persistent)?"
)
"""A rule as flannel writes it. iptables-nft finds it by its text, but no rule with `-m recent`, for example."""


@frozen
class FoundRule:
    """A rule in the table."""

    text: str
    """The rule as iptables-save writes it; empty: it is of a kind that no flannel writes, so not ours."""
    packets: int = 0
    bytes: int = 0
    handle: int = 0
    """The kernel's number of the rule, which stays as long as the rule; 0: there is none."""


@frozen
class FoundJump:
    """A rule in another chain that jumps to ours."""

    chain: str
    position: int
    """Position in that chain; 0 is first."""
    rule: FoundRule


@frozen
class FoundChain:
    """The actual state of one of our chains in a table: its rules, and the jumps to it."""

    rules: tuple[FoundRule, ...] | None
    """None: the chain does not exist."""
    jumps: tuple[FoundJump, ...] = ()
    bare: tuple[FoundJump, ...] = ()
    """Rules of an old flanneld in the hook: what our chain decides, without a chain."""
    span: Span = Span(0, 0, 0, 0)
    """Where the jump may stand in its hook."""
    places: tuple[int, ...] = ()
    """The places of our rules in the chain, if it is known which networks are ours."""
    others: tuple[FoundJump, ...] = ()
    """Rules of other networks in the chain, which are not among `rules`."""

    def is_in_place(self, jump: FoundJump) -> bool:
        """Whether a jump in the hook stands where it may."""
        return self.span.first <= self.places_before(jump) <= self.span.last

    def is_overridden_by(self, jump: FoundJump) -> str:
        """The rule on whose wrong side a jump in the hook stands, as text; empty: the jump is in its place."""
        if self.places_before(jump) < self.span.first:
            return self.span.before
        return "" if self.is_in_place(jump) else self.span.after

    def places_before(self, jump: FoundJump) -> int:
        """The number of other programs' rules before the jump."""
        ours = (each for each in self.jumps if each.chain == jump.chain and each.position < jump.position)
        return jump.position - sum(1 for _ in ours)


@frozen
class MakeChain:
    """A new chain, empty."""

    chain: str

    def __str__(self) -> str:
        return f"-N {self.chain}"


@frozen
class EmptyChain:
    """Every rule of the chain goes."""

    chain: str

    def __str__(self) -> str:
        return f"-F {self.chain}"


@frozen
class RemoveChain:
    """The chain goes; nothing jumps to it any more."""

    chain: str

    def __str__(self) -> str:
        return f"-X {self.chain}"


@frozen
class Append:
    """The rule comes last."""

    chain: str
    rule: RuleForm

    def __str__(self) -> str:
        return self.rule.text


@frozen
class Insert:
    """Number of rules of other programs that come before it."""

    chain: str
    position: int
    rule: RuleForm

    def __str__(self) -> str:
        return self.rule.text.replace(f"-A {self.chain}", f"-I {self.chain} {self.position + 1}", 1)


@frozen
class DeleteRule:
    """The removal of one rule of a chain."""

    chain: str
    position: int
    """The place of the rule, 0 is first: when it is this action's turn, or with a text when it was read."""
    text: str = ""
    """The rule as iptables-save prints it, which goes wherever another program has moved it since it was read. Empty:
    the rule at `position` goes."""
    handle: int = 0
    """See FoundRule."""

    def __str__(self) -> str:
        return self.text.replace("-A", "-D", 1) or f"-D {self.chain} {self.position + 1}"


Action: TypeAlias = MakeChain | EmptyChain | RemoveChain | Append | Insert | DeleteRule


@frozen
class Repair:
    """What is wrong, and what puts it right, in order. Both empty: nothing."""

    causes: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()


def repair_of(wanted: ChainForm, found: FoundChain) -> Repair:
    """What brings a chain and its jump to what is wanted.

    Touches our chain and jumps to it only. A chain that differs is written anew as a whole, but for rules of other
    networks, which stay after ours, also those that come after the reading; the only jump that is right keeps its
    place and its counters.
    """
    if not wanted.rules:
        return _removal(wanted, found)
    chain_causes = _chain_causes([rule.text for rule in wanted.rules], found)
    actions: list[Action] = []
    if chain_causes and found.rules is not None and wanted.networks is not None:
        actions += _deletions(wanted, _ours(wanted, found))
        actions += [Insert(wanted.name, 0, rule) for rule in reversed(wanted.rules)]
    elif chain_causes:
        actions.append(MakeChain(wanted.name) if found.rules is None else EmptyChain(wanted.name))
        actions += [Append(wanted.name, rule) for rule in wanted.rules]
    in_hook = [jump for jump in found.jumps if jump.chain == wanted.hook]
    exact = [jump for jump in in_hook if jump.rule.text == wanted.jump.text]
    right = right_jump(wanted, found)
    actions += _deletions(wanted, [*(jump for jump in in_hook if jump is not right), *found.bare])
    if right is None:
        actions.append(_jump_at_its_place(wanted, found))
    causes = _jump_causes(in_hook, exact, all(map(found.is_in_place, exact)))
    return Repair((*chain_causes, *causes, *_old_causes(found)), tuple(actions))


def others_than(jumps: Iterable[FoundJump], rules: Sequence[T]) -> list[T]:
    """The rules of a hook's chain that are none of these jumps."""
    places = {jump.position for jump in jumps}
    return [rule for place, rule in enumerate(rules) if place not in places]


def right_jump(wanted: ChainForm, found: FoundChain) -> FoundJump | None:
    """The jump in the hook, if it is the only one of the wanted form, and in its place."""
    exact = [j for j in found.jumps if j.chain == wanted.hook and j.rule.text == wanted.jump.text]
    return exact[0] if len(exact) == 1 and found.is_in_place(exact[0]) else None


def by_handle(actions: Iterable[Action]) -> list[DeleteRule]:
    """The deletions that the kernel can carry out by the handle of the rule."""
    return [each for each in actions if isinstance(each, DeleteRule) and each.handle]


def without_handles(actions: Sequence[Action]) -> list[Action]:
    """The actions but for those deletions, where the rules that they would have deleted are still there."""
    kept: list[Action] = []
    for action in actions:
        if isinstance(action, Insert):
            place = action.position
            for each in sorted(by_handle(actions), key=lambda each: each.position):
                place += each.chain == action.chain and each.position <= place
            kept.append(replace(action, position=place))
        elif not (isinstance(action, DeleteRule) and action.handle):
            kept.append(action)
    return kept


def chain_state(chain: Chain, wanted: ChainForm, before: FoundChain, found: FoundChain, program: str) -> ChainState:
    """The state of a chain that was found like this before the repair, if there was one, and after it."""
    first = repair_of(wanted, before)
    rules = found.rules or ()
    jump, misplaced = right_jump(wanted, found), [j for j in before.jumps if j.chain == wanted.hook]
    return ChainState(
        chain,
        _rule_state(chain, chain.hook, wanted.jump, jump.rule if jump else None),
        tuple(
            _rule_state(chain, chain.name, rule, rules[i] if i < len(rules) else None)
            for i, rule in enumerate(wanted.rules)
        ),
        first.causes,
        tuple(f"{program} -t {chain.table} {action}" for action in first.actions),
        as_wanted=not repair_of(wanted, found).actions,
        others=tuple(other.rule.text for other in found.others),
        overriding_rule=next(filter(None, map(before.is_overridden_by, misplaced)), ""),
    )


def without_others(wanted: ChainForm, found: FoundChain) -> FoundChain:
    """What was found, with the rules of other networks apart from ours."""
    if wanted.networks is None or found.rules is None:
        return found
    rules = list(enumerate(found.rules))
    others = {place for place, rule in rules if _is_anothers(rule, wanted)}
    if others and not wanted.rules:  # the rule about kube-proxy's mark is theirs as well
        others |= {place for place, rule in rules if _networks_of(rule, wanted) == []}
    return replace(
        found,
        rules=tuple(rule for place, rule in rules if place not in others),
        places=tuple(place for place, _ in rules if place not in others),
        others=tuple(FoundJump(wanted.name, place, rule) for place, rule in rules if place in others),
    )


def _is_anothers(rule: FoundRule, wanted: ChainForm) -> bool:
    return is_another_network(_networks_of(rule, wanted) or (), wanted.networks or ())


def _networks_of(rule: FoundRule, wanted: ChainForm) -> list[Network] | None:
    """The addresses in a rule of a flannel; None: it is none."""
    return addresses_in(rule.text) if f'--comment "{wanted.comment}"' in rule.text else None


def _rule_state(chain: Chain, name: str, wanted: RuleForm, found: FoundRule | None) -> RuleState:
    if found is None or found.text != wanted.text:
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
        text = each.rule.text
        is_ours = wanted.by_text and f'--comment "{wanted.comment}"' in text and _OF_FLANNEL.fullmatch(text)
        found.append(DeleteRule(each.chain, each.position, text if is_ours else "", each.rule.handle))
    return [*sorted(found, key=lambda each: (bool(each.text), each.chain, -each.position))]


def _chain_causes(wanted: list[str], found: FoundChain) -> list[str]:
    if found.rules is None:
        return [CHAIN_MISSING]
    return differences(wanted, [rule.text for rule in found.rules])


def _jump_at_its_place(wanted: ChainForm, found: FoundChain) -> Action:
    """The action that puts the jump where it may stand. By then, the rules of an old flanneld are gone."""
    if found.span.best == found.span.size:
        return Append(wanted.hook, wanted.jump)
    gone = (rule for rule in found.bare if found.places_before(rule) < found.span.best)
    return Insert(wanted.hook, found.span.best - sum(1 for _ in gone), wanted.jump)


def _jump_causes(in_hook: list[FoundJump], exact: list[FoundJump], are_in_place: bool) -> list[str]:
    """What is wrong with the jumps in the hook; `exact` are the jumps of the wanted form."""
    if not in_hook:
        return ["jump missing"]
    sentences = [
        ("jump different", len(exact) < len(in_hook)),
        ("jump duplicated", len(exact) > 1),
        (JUMP_MISPLACED, bool(exact) and not are_in_place),
    ]
    return [sentence for sentence, holds in sentences if holds]
