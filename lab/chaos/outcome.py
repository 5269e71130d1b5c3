"""What has happened, and which packet is lost to what. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lab.chaos.options import Options
from lab.chaos.resources import Growth
from lab.chaos.scene import Hit
from lab.chaos.table import FAULTS, Fault
from lab.stream import Lost

MARGIN: Final = 1.0
"""Seconds before and after a fault in which a packet may be on its way."""
NO_FAULT: Final = "no fault"
OFTEN: Final = 8
"""Times in which an effect that is often seen is seen once."""


@dataclass
class Happened:
    """A fault that happened; times are those of time.monotonic()."""

    name: str
    hit: Hit
    began: float
    backend: str
    undone: float = 0.0
    right: float = 0.0
    """When all was right again."""
    failures: list[str] = field(default_factory=list)

    @property
    def fault(self) -> Fault:
        """The row of the fault in the table."""
        return FAULTS[self.name]

    @property
    def repair(self) -> float:
        """Seconds from its end until all was right."""
        return self.right - self.undone

    def spans(self, moment: float) -> bool:
        """Whether it was there then."""
        return self.began - MARGIN <= moment <= (self.right or float("inf")) + MARGIN

    def allows(self, lost: Lost) -> bool:
        """Whether it may have cost this packet."""
        return self.spans(lost.sent) and self.fault.allows(self.hit, lost.path.source, lost.path.target)


@dataclass
class Outcome:
    """The run so far."""

    options: Options
    began: float = 0.0
    ended: float = 0.0
    sent: int = 0
    lost: Sequence[Lost] = ()
    each: list[Happened] = field(default_factory=list)
    growths: Sequence[Growth] = ()
    failures: list[str] = field(default_factory=list)
    """Failures of no fault in particular: at the end, and what the lab could not do."""

    def all_failures(self) -> Iterator[str]:
        """Yields a sentence for each thing that is not as the table says."""
        for happened in self.each:
            yield from (f"{happened.name} at {happened.hit.host.name}: {text}" for text in happened.failures)
        yield from forbidden(self.each, self.lost)
        yield from unseen(self.each)
        for growth in self.growths:
            yield from growth.excess()
        yield from self.failures


def unseen(each: Iterable[Happened]) -> Iterator[str]:
    """The faults that had no effect, though they happened often enough to show one."""
    found: dict[str, list[Happened]] = {}
    for happened in each:
        found.setdefault(happened.name, []).append(happened)
    for name, some in found.items():
        must_show = not FAULTS[name].shows_always and len(some) >= OFTEN  # one that always shows says so itself
        if must_show and not any(happened.hit.seen for happened in some):
            yield f"{name} happened {len(some)} times, and never was seen: {FAULTS[name].shows}"


def blamed(each: Iterable[Happened], lost: Lost) -> Happened | None:
    """The fault that a packet is lost to: one that allows it, else one that was there, else none."""
    there = [happened for happened in each if happened.spans(lost.sent)]
    return next((happened for happened in there if happened.allows(lost)), there[0] if there else None)


def forbidden(each: Sequence[Happened], lost: Iterable[Lost]) -> Iterator[str]:
    """The packets that no fault allows, by fault and path."""
    found: Counter[tuple[str, str]] = Counter()
    for one in lost:
        happened = blamed(each, one)
        if not (happened and happened.allows(one)):
            where = f"{happened.name} at {happened.hit.host.name}" if happened else NO_FAULT
            found[where, f"{one.path.source}→{one.path.target}"] += 1
    for (where, path), count in found.items():
        yield f"{count} packets lost {path} during {where}, which does not allow it"
