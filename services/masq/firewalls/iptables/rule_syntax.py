"""Rules in the two notations of iptables: the text of iptables-save, and the dictionaries of `iptc.easy`."""

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from flannelette.services.core.family import Network
from flannelette.services.masq.rules.model import Chain, Rule

Form: TypeAlias = dict[str, Any]
"""A rule as `iptc.easy` decodes it, without its counters: `{"src": "10.5.0.0/16", "target": "ACCEPT"}`.

Where only text is compared, `{"text": "-A FORWARD ..."}`.
"""


@dataclass(frozen=True, slots=True)
class RuleForm:
    """One rule in both notations."""

    form: Form
    text: str
    """`-A CHAIN ...`, as iptables-save has it."""


@dataclass(frozen=True, slots=True)
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


def chain_form(chain: Chain) -> ChainForm:
    """The chain with its jump, in both notations."""
    comment = {"comment": {"comment": chain.comment}}
    jump = RuleForm(
        {**comment, "target": chain.name}, f"-A {chain.hook} {_comment_text(chain.comment)} -j {chain.name}"
    )
    rules = tuple(RuleForm(_form(chain, rule), rule_text(chain, rule)) for rule in chain.rules)
    return ChainForm(
        chain.table, chain.hook, chain.name, jump, rules, chain.comment, chain.networks, chain.replaces_old
    )


def as_text(form: ChainForm) -> ChainForm:
    """The chain, with rules that are compared by their text alone."""
    rules = tuple(RuleForm({"text": rule.text}, rule.text) for rule in form.rules)
    return replace(form, jump=RuleForm({"text": form.jump.text}, form.jump.text), rules=rules)


def form_text(chain: str, form: Form) -> str:
    """Writes a rule of a flanneld as iptables-save does: addresses, a comment and a target."""
    if "text" in form:
        return str(form["text"])
    words = [f"-A {chain}"]
    for key, option in (("src", "-s"), ("dst", "-d")):
        if value := form.get(key, ""):
            words.append(f"{'! ' if value.startswith('!') else ''}{option} {value.lstrip('!')}")
    target = form.get("target", "")
    name, parameters = next(iter(target.items())) if isinstance(target, dict) else (target, {})
    comment = f'-m comment --comment "{form["comment"]["comment"]}"'
    return " ".join([*words, comment, f"-j {name}", *(f"--{parameter}" for parameter in parameters)])


def rule_text(chain: Chain, rule: Rule) -> str:
    """The line that iptables-save prints for it."""
    words = [f"-A {chain.name}"]
    words += [
        f"{'! ' if prefix.negated else ''}{option} {prefix.cidr}"
        for option, prefix in (("-s", rule.source), ("-d", rule.destination))
        if prefix
    ]
    if rule.mark:
        words.append(f"-m mark --mark {_mark_text(rule.mark)}")
    words.append(_comment_text(chain.comment))
    words.append(f"-j {rule.action}")
    if rule.fully_random:
        words.append("--random-fully")
    return " ".join(words)


def _form(chain: Chain, rule: Rule) -> Form:
    form: Form = {}
    for key, prefix in (("src", rule.source), ("dst", rule.destination)):
        if prefix:
            form[key] = f"{'!' if prefix.negated else ''}{prefix.cidr}"
    if rule.mark:
        form["mark"] = {"mark": _mark_text(rule.mark)}
    form["comment"] = {"comment": chain.comment}
    form["target"] = {str(rule.action): {"random-fully": ""}} if rule.fully_random else str(rule.action)
    return form


def _mark_text(mark: tuple[int, int]) -> str:
    return f"{mark[0]:#x}/{mark[1]:#x}"


def _comment_text(comment: str) -> str:
    return f'-m comment --comment "{comment}"'
