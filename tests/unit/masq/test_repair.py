"""From a tampered chain to what puts it right: the decision alone, and that it does put it right."""

from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.masq.diagnose.jump_place import Span, span_of
from flannelette.services.masq.diagnose.verdict import Effect, ForeignRule
from flannelette.services.masq.firewalls.iptables import (
    Append,
    ChainForm,
    DeleteRule,
    EmptyChain,
    Form,
    FoundChain,
    FoundJump,
    FoundRule,
    Insert,
    MakeChain,
    RemoveChain,
    Repair,
    RuleForm,
    repair_of,
)

OURS, HOOK = "FLANNEL-POSTRTG", "POSTROUTING"
JUMP: Form = {"comment": {"comment": "flanneld masq"}, "target": OURS}
RULES: list[Form] = [{"src": f"10.5.{i}.0/24", "target": "RETURN"} for i in range(3)]
FOREIGN: Form = {"target": "KUBE-POSTROUTING"}
OTHER: Form = {"dst": "10.9.0.0/16", "target": "ACCEPT"}
ALL: Form = {"target": "ACCEPT"}
"""What the policy of the chain says, as its last rule."""
BARE_JUMP: Form = {"target": OURS}

WANTED = ChainForm(
    "nat",
    HOOK,
    OURS,
    RuleForm(JUMP, f"-A {HOOK} -j {OURS}"),
    tuple(RuleForm(rule, f"-A {OURS} -s {rule['src']} -j RETURN") for rule in RULES),
)
TEXTS = {str(rule.form): rule.text for rule in (WANTED.jump, *WANTED.rules)}
UNWANTED = ChainForm("nat", HOOK, OURS, WANTED.jump, ())


def found(form: Form | None) -> FoundRule:
    return FoundRule(TEXTS.get(str(form), str(form)) if form else "")


@dataclass
class FakeTable:
    """A table as lists of dictionaries; None stands for a rule that nobody can read."""

    chains: dict[str, list[Form | None]] = field(default_factory=lambda: {HOOK: [], "OUTPUT": []})

    def find(self, wanted: ChainForm) -> FoundChain:
        if wanted.name not in self.chains:
            return FoundChain(None, span=self.span(wanted))
        callers = [wanted.hook] if wanted.rules else list(self.chains)
        jumps = [
            FoundJump(chain, position, found(form))
            for chain in callers
            for position, form in enumerate(self.chains[chain])
            if form and form["target"] == wanted.name
        ]
        return FoundChain(tuple(map(found, self.chains[wanted.name])), tuple(jumps), span=self.span(wanted))

    def span(self, wanted: ChainForm) -> Span:
        """Behind all others, but before the last rule if that accepts all packets, as the policy does."""
        others = [form for form in self.chains[wanted.hook] if not form or form["target"] != wanted.name]
        rules = [ForeignRule(str(form), (), Effect.ACCEPT if form == ALL else Effect.UNKNOWN) for form in others]
        return span_of(wanted.table, rules, lambda rule: rule, lambda chain: None)

    def carry_out(self, repair: Repair) -> None:
        for action in repair.actions:
            match action:
                case MakeChain(chain):
                    assert chain not in self.chains
                    self.chains[chain] = []
                case EmptyChain(chain):
                    self.chains[chain].clear()
                case RemoveChain(chain):
                    assert not self.chains[chain]
                    assert not any(f and f["target"] == chain for forms in self.chains.values() for f in forms)
                    del self.chains[chain]
                case Append(chain, rule):
                    self.chains[chain].append(rule.form)
                case Insert(chain, position, rule):
                    self.chains[chain].insert(position, rule.form)
                case DeleteRule(chain, position):
                    del self.chains[chain][position]


def table(hook: list[Form | None], ours: list[Form | None] | None) -> FakeTable:
    chains: dict[str, list[Form | None]] = {HOOK: list(hook), "OUTPUT": [FOREIGN]}
    return FakeTable(chains if ours is None else {**chains, OURS: list(ours)})


TAMPERED: dict[str, tuple[list[Form | None], list[Form | None] | None, tuple[str, ...]]] = {
    "a fresh machine": ([FOREIGN], None, ("chain missing", "jump missing")),
    "everything flushed": ([], [], ("rule missing", "jump missing")),
    "the chain flushed": ([FOREIGN, JUMP], [], ("rule missing",)),
    "a rule missing": ([JUMP], [RULES[0], RULES[2]], ("rule missing",)),
    "a rule twice": ([JUMP], [*RULES, RULES[1]], ("rule duplicated",)),
    "another order": ([JUMP], [RULES[1], RULES[0], RULES[2]], ("rules in another order",)),
    "a rule appended": ([JUMP], [*RULES, OTHER], ("rule extra",)),
    "a rule inserted": ([JUMP], [OTHER, *RULES], ("rule extra",)),
    "an unreadable rule": ([JUMP], [*RULES, None], ("rule extra",)),
    "a rule replaced": ([JUMP], [OTHER, *RULES[1:]], ("rule missing", "rule extra")),
    "the rules of an older flanneld": ([JUMP], [OTHER, RULES[0]], ("rule missing", "rule extra")),
    "the jump deleted": ([FOREIGN], list(RULES), ("jump missing",)),
    "a rule after the jump": ([JUMP, OTHER], list(RULES), ("jump not in its place",)),
    "the jump first, as before": ([JUMP, FOREIGN, OTHER], list(RULES), ("jump not in its place",)),
    "the jump after the last rule, which is a policy": (
        [FOREIGN, ALL, JUMP],
        list(RULES),
        ("jump not in its place",),
    ),
    "the jump twice in a row": ([FOREIGN, JUMP, JUMP], list(RULES), ("jump duplicated",)),
    "the jump twice, apart": (
        [FOREIGN, JUMP, OTHER, JUMP],
        list(RULES),
        ("jump duplicated", "jump not in its place"),
    ),
    "a jump of another shape": ([FOREIGN, BARE_JUMP], list(RULES), ("jump different",)),
    "a jump of another shape before ours": ([BARE_JUMP, JUMP], list(RULES), ("jump different",)),
    "a jump of another shape behind ours": (
        [JUMP, FOREIGN, BARE_JUMP],
        list(RULES),
        ("jump different", "jump not in its place"),
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_whatever_was_done_is_named_and_put_right_in_one_go(name: str) -> None:
    hook, ours, causes = TAMPERED[name]
    tampered = table(hook, ours)
    repair = repair_of(WANTED, tampered.find(WANTED))
    assert repair.causes == causes
    tampered.carry_out(repair)
    assert tampered.chains[OURS] == RULES
    assert tampered.chains[HOOK] == in_its_place(hook)
    assert repair_of(WANTED, tampered.find(WANTED)) == Repair()


def in_its_place(hook: list[Form | None]) -> list[Form | None]:
    """The rules of others, and the jump before those alone that end every packet."""
    others = [form for form in hook if form in (FOREIGN, OTHER, ALL)]
    place = len(others)
    while place and others[place - 1] == ALL:
        place -= 1
    return [*others[:place], JUMP, *others[place:]]


@pytest.mark.parametrize("hook", [[FOREIGN, OTHER, JUMP], [FOREIGN, JUMP, ALL], [JUMP, ALL, ALL]])
def test_what_is_right_is_left_alone(hook: list[Form | None]) -> None:
    assert repair_of(WANTED, table(hook, list(RULES)).find(WANTED)) == Repair()


def test_the_jump_keeps_its_place_and_counters_when_only_the_chain_is_wrong() -> None:
    repair = repair_of(WANTED, table([FOREIGN, JUMP], []).find(WANTED))
    assert not any(action.chain == HOOK for action in repair.actions)
    assert not any(isinstance(action, Insert | DeleteRule) for action in repair.actions)


def test_the_chain_keeps_its_counters_when_only_the_jump_is_wrong() -> None:
    repair = repair_of(WANTED, table([JUMP, FOREIGN], list(RULES)).find(WANTED))
    assert repair.actions == (DeleteRule(HOOK, 0), Append(HOOK, WANTED.jump))
    repair = repair_of(WANTED, table([JUMP, FOREIGN, ALL], list(RULES)).find(WANTED))
    assert repair.actions == (DeleteRule(HOOK, 0), Insert(HOOK, 1, WANTED.jump))


def test_the_actions_read_like_iptables() -> None:
    repair = repair_of(WANTED, table([FOREIGN], None).find(WANTED))
    assert [str(action) for action in repair.actions] == [
        "-N FLANNEL-POSTRTG",
        "-A FLANNEL-POSTRTG -s 10.5.0.0/24 -j RETURN",
        "-A FLANNEL-POSTRTG -s 10.5.1.0/24 -j RETURN",
        "-A FLANNEL-POSTRTG -s 10.5.2.0/24 -j RETURN",
        "-A POSTROUTING -j FLANNEL-POSTRTG",
    ]
    removal = repair_of(UNWANTED, table([JUMP], list(RULES)).find(UNWANTED))
    assert [str(action) for action in removal.actions] == [
        "-D POSTROUTING 1",
        "-F FLANNEL-POSTRTG",
        "-X FLANNEL-POSTRTG",
    ]


def test_a_teardown_removes_every_jump_wherever_it_stands_and_nothing_else() -> None:
    torn = table([FOREIGN, JUMP, OTHER, BARE_JUMP, JUMP], list(RULES))
    torn.chains["OUTPUT"] = [BARE_JUMP, FOREIGN]
    repair = repair_of(UNWANTED, torn.find(UNWANTED))
    torn.carry_out(repair)
    assert repair.causes == ("not wanted any more",)
    assert torn.chains == {HOOK: [FOREIGN, OTHER], "OUTPUT": [FOREIGN]}


def test_a_teardown_of_nothing_is_nothing() -> None:
    assert repair_of(UNWANTED, table([FOREIGN], None).find(UNWANTED)) == Repair()


def test_what_lives_elsewhere_goes_with_the_rules_of_an_old_flanneld() -> None:
    bare = (FoundJump(HOOK, 1, found(OTHER)), FoundJump(HOOK, 3, found(OTHER)))
    alone = repair_of(UNWANTED, FoundChain(None, bare=bare))
    assert alone == Repair(("rules of an old flanneld",), (DeleteRule(HOOK, 3), DeleteRule(HOOK, 1)))
    beside = repair_of(UNWANTED, FoundChain((), (FoundJump(HOOK, 2, found(JUMP)),), bare))
    assert beside.causes == ("not wanted any more", "rules of an old flanneld")
    assert beside.actions == (*(DeleteRule(HOOK, place) for place in (3, 2, 1)), RemoveChain(OURS))


def test_two_equal_rules_that_are_both_wanted_are_no_duplicate() -> None:
    twice = ChainForm("nat", HOOK, OURS, WANTED.jump, (WANTED.rules[0], WANTED.rules[0]))
    assert repair_of(twice, table([JUMP], [RULES[0], RULES[0]]).find(twice)) == Repair()
    assert repair_of(twice, table([JUMP], [RULES[0]]).find(twice)).causes == ("rule missing",)
    assert repair_of(twice, table([JUMP], [RULES[0]] * 3).find(twice)).causes == ("rule duplicated",)


hook_rules = st.lists(st.sampled_from([FOREIGN, OTHER, ALL, JUMP, BARE_JUMP]), max_size=7)
our_rules = st.none() | st.lists(st.sampled_from([*RULES, OTHER, None]), max_size=6)


@given(hook_rules, our_rules)
def test_any_state_is_put_right_and_foreign_rules_keep_their_order(
    hook: list[Form | None], ours: list[Form | None] | None
) -> None:
    if ours is None:
        hook = [form for form in hook if form in (FOREIGN, OTHER, ALL)]  # the kernel has no jump to nowhere
    tampered = table(hook, ours)
    before = deepcopy(tampered.chains)
    repair = repair_of(WANTED, tampered.find(WANTED))
    assert bool(repair.causes) == bool(repair.actions)
    tampered.carry_out(repair)
    foreign = [form for form in before[HOOK] if form in (FOREIGN, OTHER, ALL)]
    assert tampered.chains == {**before, HOOK: in_its_place(before[HOOK]), OURS: RULES}
    tampered.carry_out(repair_of(UNWANTED, tampered.find(UNWANTED)))
    assert tampered.chains == {HOOK: foreign, "OUTPUT": [FOREIGN]}
