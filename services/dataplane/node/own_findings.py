"""What is wrong with the node's own lease and clock: another program overwrites it, it is not renewed. Pure.

The node restores an overwritten key at once, so that no packet is lost. Two nodes of one name, or a node and a
script, would overwrite each other at full speed: after the first few repairs there are pauses.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.underlay import Underlay

_WINDOW: Final = 60.0
"""Seconds."""
_AT_ONCE: Final = 3
"""So many losses in a window are answered at once. With the pauses after them it is at most some 20 a minute."""
_FIGHT: Final = 2
"""So many losses in a window are told: once is a mistake."""


MOST_SKEW_SECONDS: Final = 10.0
"""Between two clocks. Leases are renewed by durations, so that less does no harm but to the order of events; more is
a clock that nobody sets, which ends in certificates that are not valid yet, or no longer.
"""


class OverwriteCounter:
    """Counts how often the own lease was overwritten in the last minute, on a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque()
        self._last = ""

    @property
    def count(self) -> int:
        """How many there were in the last minute."""
        while self._times and self._times[0] <= self._clock() - _WINDOW:
            self._times.popleft()
        return len(self._times)

    @property
    def is_answered_at_once(self) -> bool:
        """Whether there are still so few that there need not be a pause."""
        return 0 < self.count <= _AT_ONCE

    def note(self, reason: str) -> None:
        """Counts one more overwriting, now."""
        self._times.append(self._clock())
        self._last = reason

    def contested_key(self, lease: Lease | None) -> Condition | None:
        """Returns a finding if another program writes the key of this lease again and again."""
        if lease is None or self.count < _FIGHT:
            return None
        evidence = f"{self._last}; the node restores it, at most some 20 times a minute"
        return found("node.own-key", node=lease.node, lease=lease.name, count=self.count, evidence=evidence)


def lacking_findings(underlay: Underlay | None) -> Iterator[Condition]:
    """Findings about families that the node does not carry, because its interface has no address of them."""
    for family, reason in underlay.lacking if underlay else ():
        name = underlay.name if underlay else ""
        yield found(
            "underlay.family",
            family=family,
            device=name,
            why=f"{reason[:1].upper()}{reason[1:]}",
            evidence=f"{'ip' if family.version == 4 else 'ip -6'} addr show dev {name} scope global: nothing usable",
        )


def own_findings(lease: Lease | None, failures: Sequence[str], clock_ahead: float, now: float) -> Iterator[Condition]:
    """What is found now. `failures`: of the renewals since the last that succeeded; `clock_ahead`: of the lease
    service's clock before ours; `now`: Unix time.
    """
    if lease is not None and lease.expires_at is not None and len(failures) > 1:  # one may be a restart
        over = datetime.fromtimestamp(lease.expires_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        is_over = lease.expires_at <= now
        yield found(
            "node.own-lease",
            lease=lease.name,
            runs="ran" if is_over else "runs",
            time=over,
            reason=failures[-1],
            evidence="without the lease, another node may get the subnet, and peers remove their routes",
        )
    if abs(clock_ahead) > MOST_SKEW_SECONDS:
        where = "behind" if clock_ahead > 0 else "ahead of"
        evidence = "the time in the lease service's answer to ReportProgress"
        yield found("node.clock", seconds=f"{abs(clock_ahead):.0f}", where=where, evidence=evidence)
