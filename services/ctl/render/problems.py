"""The problems of nodes: the symptom of each, then its cause, the evidence and the cure."""

from collections.abc import Collection, Sequence
from typing import Final

from rich.text import Text

from flannelette.services.core.conditions import Weight
from flannelette.services.ctl.problems import Problem
from flannelette.services.ctl.render.layout import Width, fold, labelled, lines, table
from flannelette.services.ctl.units import count, shown_nodes

_STYLES: Final = {Weight.BROKEN: "bold red", Weight.SOON: "bold yellow", Weight.WARNING: "bold"}
_COLUMN: Final = 9


def doctor_text(names: Sequence[str], found: Collection[Problem], width: Width) -> Text:
    """Prints the problems: a paragraph each on a terminal, one line each in a pipe; a sentence where there are none.

    `names` are the nodes that were asked. Which of them has a problem is told where there are several.
    """
    who = names[0] if len(names) == 1 else count(len(names), "node")
    if not found:
        return Text(f"{who}: no problems found", style="bold green")
    if width is None:
        return _lines(found, is_one=len(names) == 1)
    broken = sum(each.weight is Weight.BROKEN for each in found)
    some = "which" if len(found) == 1 else f"{broken} of them"
    parts = count(len(found), "problem") + (f", {some} {_loses(broken)} packets now" if broken else "")
    out: list[str | Text] = [fold(Text(f"{who}: {parts}", style="bold red"), width)]
    for each in found:
        head = Text().append(f"{each.weight.name:<{_COLUMN}}", _STYLES[each.weight])
        said = f"{each.service}: {each.problem}" if each.service else each.problem
        out += ["", fold(head.append(said), width, _COLUMN)]
        out += [
            labelled(label, value, width)
            for label, value in (
                ("nodes", shown_nodes(each.nodes) if len(names) > 1 else ""),
                ("cause", each.cause),
                ("evidence", each.evidence),
                ("effects", "; ".join(each.effects)),
                ("cure", Text(each.cure, style="green")),
            )
            if value
        ]
    return lines(out)


def _lines(found: Collection[Problem], *, is_one: bool) -> Text:
    rows = [
        (
            (each.weight.name,),
            *(() if is_one else ((shown_nodes(each.nodes),),)),
            (each.service,),
            (f"{each.problem} {each.cause}".strip(),),
            (each.cure,),
            (each.evidence,),
        )
        for each in found
    ]
    titles = ("WEIGHT", *(() if is_one else ("NODE",)), "SERVICE", "PROBLEM", "CURE", "EVIDENCE")
    return table(titles, rows, None)


def _loses(number: int) -> str:
    return "loses" if number == 1 else "lose"


def fixes_text(commands: Sequence[str]) -> Text:
    """What --fix is about to run."""
    return lines(["", "To be carried out on this host:", *(f"  {each}" for each in commands)])
