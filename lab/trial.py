"""The outcome of a cluster's trial: what failed, in words, and the figures."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.kills import Kills
from lab.options import Options
from lab.reach import Answer, Matrix, Outside, unreached
from lab.transfer import LONGEST_STALL, Transfers


class FiguresUnwritable(Exception):
    """One line that names the file and says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the trial found."""

    pod_pings: Matrix
    masquerade: Outside
    kills: Kills
    ready_seconds: float
    """Seconds from the start of the first process until every service was ready."""
    transfers: Transfers | None = None
    """What became of TCP meanwhile across a narrow path; None: there is none."""

    def failures(self) -> Iterator[str]:
        """What went wrong, one sentence each; none: the trial is passed."""
        yield from unreached(self.pod_pings, self.masquerade)
        for kill in self.kills.each:
            if kill.changes:
                yield f"the {kill.title} was killed, and {kill.changes} kernel objects changed until it was back"
        for line in self.kills.differs:
            yield f"a kernel is not as it was before the kills: {line}"
        for when, lost in self.kills.lost_when().items():
            paths = ", ".join(sorted({f"{one.path.source}→{one.path.target}" for one in lost}))
            yield f"{len(lost)} of the pings were lost {when} ({paths})"

        if self.transfers and self.transfers.stall > LONGEST_STALL:
            yield f"TCP across the narrow path stood still for {self.transfers.stall:.1f} s"

    def write(self, options: Options, path: Path) -> None:
        """Writes the figures as JSON. Raises FiguresUnwritable."""
        figures = {
            "nodes": options.nodes,
            "backend": options.backend,
            "store": options.store,
            "pod_pings": _count(self.pod_pings.values()),
            "masquerade": _count(self.masquerade.values()),
            "restart_lost": len(self.kills.lost),
            "ready_seconds": round(self.ready_seconds, 3),
        }
        if self.transfers:
            figures |= {"tcp_bytes": self.transfers.moved, "tcp_longest_stall": round(self.transfers.stall, 3)}
        try:
            path.write_text(json.dumps(figures) + "\n")
        except OSError as error:
            raise FiguresUnwritable(
                f"cannot write the figures to {path} ({error.strerror}): name another file"
            ) from None


def _count(answers: Collection[Answer]) -> dict[str, int]:
    return {"ok": sum(answer.is_good for answer in answers), "total": len(answers)}
