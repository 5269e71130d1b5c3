"""Rules in the two notations of iptables: the text of iptables-save, and the dictionaries of `iptc.easy`."""

from services.masq.firewalls.messages import ChainForm, Form, RuleForm
from services.masq.rules import Chain, Rule


def chain_form(chain: Chain) -> ChainForm:
    """The chain with its jump, in both notations."""
    comment = {"comment": {"comment": chain.comment}}
    jump = RuleForm(
        {**comment, "target": chain.name}, f"-A {chain.hook} {_comment_text(chain.comment)} -j {chain.name}"
    )
    rules = tuple(RuleForm(_form(chain, rule), rule_text(chain, rule)) for rule in chain.rules)
    ours = None if chain.networks is None else tuple(map(str, chain.networks))
    return ChainForm(chain.table, chain.hook, chain.name, jump, rules, chain.comment, ours, chain.moved)


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
