"""What `connectivity` prints: progress, a matrix of nodes, what failed, and doctor's word; and JUnit's XML."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from xml.etree import ElementTree as Xml

from rich.text import Text

from flannelette.services.ctl.diagnose.connectivity_checks import TESTS, Check, Group, Outcome, grouped
from flannelette.services.ctl.render.layout import Cell, Width, fold, lines, table
from flannelette.services.ctl.render.screen import harmless
from flannelette.services.ctl.units import count, in_order, shown_nodes

_LARGE, _NONE, _OWN = "large", "FAIL", "-"
_LEGEND: Final = f"round-trip time in ms; {_NONE}: not reached; {_LARGE}: full-size packets are lost"
_NOTHING_KNOWN: Final = "doctor knows of no problem of these nodes; what is between them?"
_WAYS: Final = {
    "overlay": "through the overlay",
    "underlay": "in the underlay",
    "pod": "at a pod",
    "outside": "outside",
}


def start_line(names: Sequence[str], width: Width) -> Text:
    """Returns the line that is printed before the first answer."""
    return fold(f"Testing connectivity of {count(len(names), 'node')}: {shown_nodes(names)}", width, 4)


def progress_line(what: str, name: str, checks: Sequence[Check]) -> Text:
    """When a node has asked all."""
    failed = sum(check.outcome is Outcome.FAILED for check in checks)
    end = (f"{failed} failed", "red") if failed else ("ok", "green")
    return Text.assemble((f"  {name}: ", "dim"), f"{what}, {count(len(checks), 'check')}, ", end)


def report(checks: Sequence[Check], told: Text | None, width: Width) -> Text:
    """Returns the whole report; `told` is what doctor prints, if it knows of anything. In a pipe each check is a
    line.
    """
    if width is None:
        return lines([_table(checks), "", told] if told else [_table(checks)])
    failed = [check for check in checks if check.outcome is Outcome.FAILED]
    out: list[str | Text] = ["", *_summary(checks, width), "", *_matrix(checks, width)]
    untested = [check for check in checks if check.is_untested]
    total = sum(check.outcome is not Outcome.SKIPPED for check in checks) + len(untested)
    rest = f", {len(untested)} not tested" if untested else ""
    if not failed and not untested:
        out.append(Text(f"all {count(total, 'check')} passed", style="bold green"))
        return lines(out)
    if failed:
        out.append(Text(f"{len(failed)} of {count(total, 'check')} failed{rest}", style="bold red"))
    else:
        passed = f"{total - len(untested)} of {count(total, 'check')} passed"
        out.append(Text(f"{passed}{rest}", style="bold yellow"))
    out += [fold(_failure(group), width, 4) for group in grouped(failed)]
    out += [fold(_untested(group), width, 4) for group in grouped(untested)]
    if not failed:
        return lines(out)
    out += ["", Text("What doctor knows about these nodes:", style="bold")] if told else []
    out += [told] if told else []
    out += [] if told else ["", fold(_NOTHING_KNOWN, width)]
    return lines(out)


def _table(checks: Iterable[Check]) -> Text:
    rows = [
        (
            (check.outcome.value,),
            (check.test,),
            (check.source,),
            (check.target,),
            (check.address,),
            (str(check.size) if check.size else "small",),
            ("" if check.milliseconds is None else f"{check.milliseconds:.2f}",),
            (check.reason,),
        )
        for check in checks
    ]
    return table(("RESULT", "TEST", "FROM", "TO", "ADDRESS", "SIZE", "MS", "REASON"), rows, None)


def junit(checks: Sequence[Check], told: Callable[[Check], Text | None]) -> Text:
    """JUnit's XML: a suite for each test, a case for each check; `told` is what doctor says of one that failed."""
    root = Xml.Element("testsuites", {"name": "flannelette connectivity", **_numbers(checks)})
    for test in TESTS:
        cases = [check for check in checks if check.test == test]
        suite = Xml.SubElement(root, "testsuite", {"name": test, **_numbers(cases)})
        for check in cases:
            seconds = f"{(check.milliseconds or 0) / 1000:.6f}"
            case = Xml.SubElement(suite, "testcase", classname=f"connectivity.{test}", name=check.name, time=seconds)
            if check.outcome is Outcome.FAILED:
                failure = Xml.SubElement(case, "failure", message=check.reason or "no answer", type=test)
                failure.text = harmless(told(check) or Text(_NOTHING_KNOWN)).plain
            elif check.outcome is Outcome.SKIPPED:
                Xml.SubElement(case, "skipped", message=check.reason)
    Xml.indent(root)
    for element in root.iter():  # names come from other nodes, and XML has no control characters
        element.attrib = {name: harmless(Text(value)).plain for name, value in element.items()}
    return Text(Xml.tostring(root, encoding="us-ascii", xml_declaration=True).decode())


def _numbers(checks: Sequence[Check]) -> dict[str, str]:
    counts = Counter(check.outcome for check in checks)
    return {
        "tests": str(counts.total()),
        "failures": str(counts[Outcome.FAILED]),
        "errors": "0",
        "skipped": str(counts[Outcome.SKIPPED]),
        "time": f"{sum(check.milliseconds or 0 for check in checks) / 1000:.6f}",
    }


def _summary(checks: Sequence[Check], width: Width) -> Iterable[Text]:
    """A line for each test."""
    for test, title in TESTS.items():
        some = [check for check in checks if check.test == test]
        counts = Counter(check.outcome for check in some)
        ran = counts.total() - counts[Outcome.SKIPPED]
        untested = sum(check.is_untested for check in some)
        mark, style = ("FAIL", "red") if counts[Outcome.FAILED] else ("ok", "green") if ran else ("-", "dim")
        mark, style = ("?", "yellow") if untested and not counts[Outcome.FAILED] else (mark, style)
        passed = f"skipped: {some[0].reason}" if some else "-"
        if ran or untested:
            rest = f", {untested} not tested" if untested else ""
            passed = f"{counts[Outcome.PASSED]} of {ran + untested} passed{rest}"
        head = Text.assemble((f"{mark:<5}", style), f"{test:<9} {passed}")
        yield fold(head + Text(f"  {title}", style="dim") if ran else head, width, 15)


def _matrix(checks: Sequence[Check], width: Width) -> Sequence[str | Text]:
    """Draws who reaches whom; a matrix that is too wide becomes a list of those who do not, below."""
    shown = [check for check in checks if check.test != "underlay" and check.source and check.target != "all"]
    sources = sorted({check.source for check in shown}, key=in_order)
    targets = [*sorted({check.target for check in shown if check.test != "outside"}, key=in_order)]
    targets += [*dict.fromkeys(check.target for check in shown if check.test == "outside")]
    cells: dict[tuple[str, str], list[Check]] = {}
    for check in shown:
        cells.setdefault((check.source, check.target), []).append(check)
    rows: list[list[Cell]] = [[(source,)] for source in sources]
    for row, source in zip(rows, sources, strict=True):
        row += [(_cell(cells.get((source, target), ())),) for target in targets]
    widths = [max(len(source) for source in ("FROM", *sources))] if sources else []
    widths += [max(len(target), len(_LARGE)) for target in targets]
    if not rows or (width is not None and sum(widths) + 2 * len(targets) > width):
        pairs = {pair: [check.outcome for check in some] for pair, some in cells.items()}
        good = sum(Outcome.FAILED not in outcomes for outcomes in pairs.values())
        return [f"{good} of {count(len(pairs), 'pair')} reach each other in every way", ""]
    return [table(("FROM", *targets), rows, width), Text(_LEGEND, style="dim"), ""]


def _cell(checks: Sequence[Check]) -> Text:
    failed = [check for check in checks if check.outcome is Outcome.FAILED]
    if any(not check.size for check in failed):
        return Text(_NONE, style="bold red")
    if failed:
        return Text(_LARGE, style="red")
    times = [check.milliseconds for check in checks if check.milliseconds is not None]
    return Text(f"{max(times):.2f}", style="green") if times else Text(_OWN, style="dim")


def _untested(group: Group) -> Text:
    others = shown_nodes(group.others)
    ends = f"{group.node} to {others}" if group.is_source else f"{others} to {group.node}"
    why = f", because {'; '.join(group.reasons)}" if group.reasons else ""
    return Text.assemble(("? ", "yellow"), f"not tested: {ends} {_WAYS[group.test]} ({', '.join(group.what)}){why}")


def _failure(group: Group) -> Text:
    others = shown_nodes(group.others)
    verb = "do" if len(group.others) > 1 else "does"
    ends = f"{group.node} does not reach {others}" if group.is_source else f"{others} {verb} not reach {group.node}"
    why = f": {'; '.join(group.reasons)}" if group.reasons else ""
    kinds = ", ".join(group.what)
    where = "" if group.test == "outside" else f" {_WAYS[group.test]}"
    return Text.assemble(("* ", "red"), f"{ends}{where}{f' ({kinds})' if kinds else ''}{why}")
