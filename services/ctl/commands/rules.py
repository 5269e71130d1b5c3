"""`flannelette rules` and `explain`: firewall rules, in the notation of their own tool, and what they decide."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import click
from rich.text import Text

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import LIST_SECONDS, Channels
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.follow import Row, Shown, show_each, why_incomplete
from flannelette.services.ctl.options import watched
from flannelette.services.ctl.screen import Cell, Screen, Width, fold, lines, table, to_json

_TITLES: Final = ("STATE", "FAMILY", "TABLE", "PACKETS", "BYTES", "RULE", "REASON")
_NO_TRACE: Final = (
    "--trace was removed: `nft monitor trace` shows what the kernel does with a packet "
    "(docs/operations.md has the commands); without --trace, explain answers from the rules"
)


@command(scope="every")
@watched
def rules(nodes: Nodes, screen: Screen, watch: bool) -> int:
    """Show the firewall rules, and the reason for each.

    Of several nodes each has a list. Exits with 1 if a rule is missing. With
    --watch, a pipe gets a line when a rule changes.
    """
    return show_each(nodes, screen, _look, is_watching=watch)


async def _look(targets: Targets, channels: Channels) -> Shown:
    target, remarks, code = targets["masq"], tuple[str, ...](), 0
    response = await channels.ask(target, lambda c: MasqServiceStub(c).ListRules(pb.ListRulesRequest()), LIST_SECONDS)
    if not (response.rules and _all_well(response.rules)):
        answer = await channels.ask(target, lambda c: MasqServiceStub(c).GetStatus(pb.GetStatusRequest()))
        remarks, code = why_incomplete(answer.status, bool(response.rules))
    rows = {
        f"{number} {rule.family} {rule.table} {rule.text}": Row(
            (rule.present, rule.reason), _rule_row(rule), to_json(rule)
        )
        for number, rule in enumerate(response.rules)
    }
    return Shown(
        lambda width: rules_text(response.rules, width),
        to_json(response),
        code,
        _TITLES,
        rows,
        _TITLES.index("STATE"),
        remarks,
        is_table=True,
    )


@command(
    scope="every",
    examples=("flannelette explain pod 198.51.100.1", "flannelette explain 10.5.1.2 10.5.2.2 --mark 0x4000"),
)
@click.argument("source")
@click.argument("destination")
@click.option("--mark", default="0", metavar="MARK", help="The packet's mark, such as 0x4000.")
@click.option("--trace", is_flag=True, hidden=True)
@watched
def explain(nodes: Nodes, screen: Screen, source: str, destination: str, mark: str, trace: bool, watch: bool) -> int:
    """Explain which source address a packet gets.

    SOURCE may be `pod`, for a pod of the node; of several nodes each explains. Also names a rule of another
    program that drops the packet. Exits with 1 if there is such a rule, or if a
    rule of ours is missing.
    """
    if trace:
        raise click.UsageError(_NO_TRACE)
    try:
        number = int(mark, 0)
    except ValueError:
        raise click.BadParameter(f"{mark!r} is not a number: write 16384 or 0x4000", param_hint="--mark") from None
    request = pb.ExplainRequest(source="" if source == "pod" else source, destination=destination, mark=number)

    async def look(targets: Targets, channels: Channels) -> Shown:
        answer = await channels.ask(targets["masq"], lambda c: MasqServiceStub(c).Explain(request), LIST_SECONDS)
        return Shown(
            lambda width: _explanation_text(answer, width),
            to_json(answer),
            0 if _all_well(answer.rules) and not answer.findings else 1,
            ("STATE", "WHAT"),
            {
                what: Row(state, ((state,), (what,)), {"state": state, "what": what})
                for state, what in _explanation_rows(answer)
            },
            0,
        )

    return show_each(nodes, screen, look, is_watching=watch)


def rules_text(rules: Sequence[pb.Rule], width: Width) -> Text:
    """All rules in their order: on a terminal by chain with the reason of each below it, else one line each."""
    if width is None:
        return table(_TITLES, [_rule_row(rule) for rule in rules], None)
    if not rules:
        return fold("no rules", width)
    out: list[Text] = []
    for (family, name, chain), group in groupby(rules, key=lambda rule: (rule.family, rule.table, rule.chain)):
        out += [Text(f"{family} {name} {chain}", style="bold")]
        for rule in group:
            out += _rule(rule, width)
        out.append(Text())
    present = sum(rule.present for rule in rules)
    out.append(Text(f"{present} of {count(len(rules), 'rule')} present", style="dim" if _all_well(rules) else "red"))
    return lines(out)


def _explanation_text(response: pb.ExplainResponse, width: Width) -> Text:
    """What becomes of the packet, and below it the rules that decide; then what of other programs drops it."""
    found = [Text(_finding_text(each), style="yellow") for each in response.findings]
    if width is None:
        pairs = (Text(f"{rule.chain}  {rule.text}") for rule in response.rules)
        return lines([Text(response.explanation), *pairs, *found])
    out = [fold(Text(response.explanation, style="bold"), width)]
    out += [line for rule in response.rules for line in _rule(rule, width)]
    return lines([*out, *(fold(each, width, 2) for each in found)])


def _all_well(rules: Sequence[pb.Rule]) -> bool:
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


def _rule_row(rule: pb.Rule) -> tuple[Cell, ...]:
    """The cells of a rule, in the order of _TITLES."""
    numbers = (str(rule.packets),), (str(rule.bytes),)
    return (_state(rule),), (rule.family,), (rule.table,), *numbers, (rule.text,), (rule.reason,)


def _explanation_rows(response: pb.ExplainResponse) -> list[tuple[str, str]]:
    """State and text of what becomes of the packet, of each rule that decides, and of each finding."""
    said = "masqueraded" if response.masqueraded else "unchanged"
    rules = ((_state(rule), f"{rule.chain} {rule.text}") for rule in response.rules)
    return [(said, response.explanation), *rules, *(("finding", _finding_text(each)) for each in response.findings)]


def _state(rule: pb.Rule) -> str:
    return "present" if rule.present else "missing"


def _finding_text(finding: pb.Finding) -> str:
    return " ".join(filter(None, ("!", finding.problem, finding.cause, "Cure:", finding.cure)))
