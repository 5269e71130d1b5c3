"""Firewall rules, in the notation of the firewall's own tool."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rich.text import Text

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.ctl.render.layout import Cell, Width, fold, lines, table
from flannelette.services.ctl.units import count

TITLES: Final = ("STATE", "FAMILY", "TABLE", "PACKETS", "BYTES", "RULE", "REASON")
STATE: Final = TITLES.index("STATE")
EXPLAINED: Final = ("STATE", "WHAT")


def rules_text(rules: Sequence[pb.Rule], width: Width) -> Text:
    """All rules in their order: on a terminal by chain with the reason of each below it, else one line each."""
    if width is None:
        return table(TITLES, [rule_row(rule) for rule in rules], None)
    if not rules:
        return fold("no rules", width)
    out: list[Text] = []
    for (family, name, chain), group in groupby(rules, key=lambda rule: (rule.family, rule.table, rule.chain)):
        out += [Text(f"{family} {name} {chain}", style="bold")]
        for rule in group:
            out += _rule(rule, width)
        out.append(Text())
    present = sum(rule.present for rule in rules)
    out.append(Text(f"{present} of {count(len(rules), 'rule')} present", style="dim" if all_well(rules) else "red"))
    return lines(out)


def explanation_text(response: pb.ExplainResponse, width: Width) -> Text:
    """What becomes of the packet, and below it the rules that decide; then what of other programs drops it."""
    found = [Text(_in_the_way(each), style="yellow") for each in response.findings]
    if width is None:
        pairs = (Text(f"{rule.chain}  {rule.text}") for rule in response.rules)
        return lines([Text(response.explanation), *pairs, *found])
    out = [fold(Text(response.explanation, style="bold"), width)]
    out += [line for rule in response.rules for line in _rule(rule, width)]
    return lines([*out, *(fold(each, width, 2) for each in found)])


def all_well(rules: Sequence[pb.Rule]) -> bool:
    """Every rule is at its place."""
    return all(rule.present for rule in rules)


def _rule(rule: pb.Rule, width: Width) -> list[Text]:
    state = Text(_state(rule), style="green" if rule.present else "red")
    head = Text("  ").append_text(state).append("  ")
    indent = head.cell_len
    below = [rule.reason] if rule.reason else []
    if rule.packets:
        below.append(f"{count(rule.packets, 'packet')}, {count(rule.bytes, 'byte')}")
    return [
        fold(head + Text(rule.text), width, indent + 2),
        *(fold(Text(" " * indent + text, style="dim"), width, indent) for text in below),
    ]


def rule_row(rule: pb.Rule) -> tuple[Cell, ...]:
    """The cells of a rule, in the order of TITLES."""
    numbers = (str(rule.packets),), (str(rule.bytes),)
    return (_state(rule),), (rule.family,), (rule.table,), *numbers, (rule.text,), (rule.reason,)


def explanation_rows(response: pb.ExplainResponse) -> list[tuple[str, str]]:
    """State and text of what becomes of the packet, of each rule that decides, and of each finding."""
    said = "masqueraded" if response.masqueraded else "unchanged"
    rules = ((_state(rule), f"{rule.chain} {rule.text}") for rule in response.rules)
    return [(said, response.explanation), *rules, *(("finding", _in_the_way(each)) for each in response.findings)]


def _state(rule: pb.Rule) -> str:
    return "present" if rule.present else "missing"


def _in_the_way(finding: pb.Finding) -> str:
    return " ".join(filter(None, ("!", finding.problem, finding.cause, "Cure:", finding.cure)))
