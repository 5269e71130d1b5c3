"""The live view of a cluster: a row for each node, the events, and one node in full."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

from flannelette.services.ctl.render.layout import Cell, lines, table
from flannelette.services.ctl.render.overview import Condition
from flannelette.services.ctl.units import byte_count, count, in_order

TITLES: Final = ("NODE", "STATE", "PEERS", "ANSWER", "RTT", "LOSS", "IN/s", "OUT/s", "PROBLEM")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that the overlay devices of a node have counted, in both directions, at a time in seconds."""

    time: float
    received: int
    sent: int


@dataclass(frozen=True, slots=True)
class Line:
    """A node at a time."""

    cells: tuple[Cell, ...]
    """Name, state, peers, answer, and the gravest problem."""
    state: Condition
    peers: tuple[int, int] | None = None
    """How many are programmed, of how many; None: not known."""
    answer: tuple[int, int] | None = None
    """How many answer probes, of how many; None: not known."""
    round_trip: int = 0
    """Median in microseconds; 0: not known."""
    loss: float | None = None
    """Mean over the peers, 0 to 1; None: not known."""
    before: Traffic | None = None
    now: Traffic | None = None
    """None: it has no device, as with host-gw, or does not tell."""

    @property
    def name(self) -> str:
        """The name of the node."""
        return _word(self.cells[0])

    @property
    def gravity(self) -> int:
        """How grave the state is; the largest is the worst."""
        return list(Condition).index(self.state)

    def rate(self, of: Callable[[Traffic], int]) -> float | None:
        """Bytes a second between the last two answers; None: not known, or a device was made anew."""
        if self.before is None or self.now is None or self.now.time <= self.before.time:
            return None
        change = of(self.now) - of(self.before)
        return change / (self.now.time - self.before.time) if change >= 0 else None


def _received(traffic: Traffic) -> int:
    return traffic.received


def _sent(traffic: Traffic) -> int:
    return traffic.sent


SORTS: Final[Mapping[str, Callable[[Line], Any]]] = {
    "state": lambda line: -line.gravity,
    "name": lambda line: in_order(line.name),
    "rtt": lambda line: -line.round_trip,
    "loss": lambda line: -(line.loss or 0),
    "traffic": lambda line: -((line.rate(_received) or 0) + (line.rate(_sent) or 0)),
}
"""The orders, the first one first; nodes that are equal stay in the order of the context."""


def row_of(line: Line) -> list[Cell]:
    """The cells of a node, in the order of TITLES."""
    name, state, peers, answer, problem = line.cells
    time = f"{line.round_trip / 1000:.2f} ms" if line.round_trip else "-"
    loss = "-" if line.loss is None else f"{line.loss:.0%}"
    coloured = Text(loss, style="yellow" if line.loss else "")
    return [
        name, state, peers, answer, (time,), (coloured,), (_rate(line, _received),), (_rate(line, _sent),), problem
    ]  # fmt: skip


def document_of(line: Line) -> dict[str, Any]:
    """The row for programs: `rtt` in milliseconds, `loss` from 0 to 1, traffic in bytes a second; None: not known."""
    received, sent = line.rate(_received), line.rate(_sent)
    return {
        "node": line.name,
        "state": line.state.name,
        "peers": dict(zip(("programmed", "total"), line.peers, strict=True)) if line.peers else None,
        "answer": dict(zip(("answering", "probed"), line.answer, strict=True)) if line.answer else None,
        "rtt": line.round_trip / 1000 if line.round_trip else None,
        "loss": None if line.loss is None else round(line.loss, 4),
        "in_per_second": None if received is None else round(received),
        "out_per_second": None if sent is None else round(sent),
        "problem": _word(line.cells[-1]),
    }


def page(
    shown: Sequence[Line],
    events: Collection[Text],
    *,
    sort: str,
    selected: int,
    clock: str,
    size: tuple[int, int],
) -> Text:
    """A page that fits into so many columns and lines."""
    columns, height = size
    states = Counter(_word(line.cells[1]) for line in sorted(shown, key=lambda line: line.gravity))
    counted = ", ".join(f"{number} {state}" for state, number in states.items())
    room = max(height - 5 - min(len(events), max(height // 4, 2)), 1)
    first = min(max(selected - room + 1, 0), max(len(shown) - room, 0))
    rows = [row_of(line)[:-1] for line in shown]
    listed = table(TITLES[:-1], rows, None).split("\n")
    body: list[Text] = []
    for number, text in enumerate(listed[1:][first : first + room], first):
        if number == selected:
            text = Text(text.plain.ljust(columns - 2), style="reverse")
        body.append(Text.assemble("> " if number == selected else "  ", text))
    more = "" if len(shown) <= room else f", {first + 1} to {min(first + room, len(shown))} shown"
    head = Text(f"{clock}  {count(len(shown), 'node')}: {counted}{more}; by {sort}", style="bold")
    problem = Text(f"  {_word(shown[selected].cells[-1])}" if shown else "", style="yellow")
    foot = Text("s sort  up/down choose  Enter look into  q quit", style="dim")
    recent = list(events)[-max(height - 5 - len(body), 0) :] if height - 5 - len(body) > 0 else []
    out = [head, Text.assemble("  ", listed[0]), *body, problem, Text("events", style="bold"), *recent]
    return lines([_cut(text, columns) for text in out[: max(height - 1, 1)]] + [_cut(foot, columns)])


def _word(cell: Cell) -> str:
    return str(cell[0])


def _cut(text: Text, columns: int) -> Text:
    text.truncate(columns, overflow="ellipsis")
    return text


def _rate(line: Line, of: Callable[[Traffic], int]) -> str:
    rate = line.rate(of)
    return "-" if rate is None else byte_count(rate)
