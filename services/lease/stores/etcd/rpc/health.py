"""How well etcd answers: how long calls take, which members fail, and since when none answers."""

import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.conditions import Condition, found

_CALLS: Final = 20
"""The last calls, by which etcd is judged; a lease service without work makes one in 20 s."""
_RECENT_SECONDS: Final = 600.0
_FEWEST: Final = 5
_SLOW_SECONDS: Final = 0.5
"""Median. A healthy etcd needs some ten milliseconds; its members elect another leader after a second without a sign
of life, and our calls end after five.
"""
_PASSING_SECONDS: Final = 5.0
"""An election, and a restart of a member, take less."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a member."""

    reason: str
    """A clause that follows the name of the member."""
    since: float


class EtcdHealth:
    """The calls and faults of the members of these names. `clock` is monotonic."""

    def __init__(self, names: Sequence[str], clock: Callable[[], float]) -> None:
        self._names = names
        self._clock = clock
        self._calls: deque[tuple[float, float]] = deque(maxlen=_CALLS)
        """When each call ended, and how long it took."""
        self._answered_at: float | None = None
        self._faults: dict[str, Fault] = {}

    def called(self, seconds: float) -> None:
        """A call was answered after so long; those that were not are faults."""
        self._calls.append((self._clock(), seconds))

    def answered(self, name: str) -> None:
        """The member is well."""
        self._answered_at = self._clock()
        self._faults.pop(name, None)

    def failed(self, name: str, reason: str) -> None:
        """The member did not answer as it should."""
        before = self._faults.get(name)
        self._faults[name] = Fault(reason, before.since if before else self._clock())

    @property
    def failing(self) -> list[str]:
        """The names of members that have failed, and have not answered since."""
        return [name for name in self._names if name in self._faults]

    @property
    def complaint(self) -> str:
        """What is wrong, the same for the same faults; members of one fault together."""
        groups: dict[str, list[str]] = {}
        for name in self.failing:
            groups.setdefault(self._faults[name].reason, []).append(name)
        return "; ".join(f"etcd at {', '.join(names)} {reason}" for reason, names in groups.items())

    def findings(self) -> Iterator[Condition]:
        """What an operator should know."""
        now = self._clock()
        lasting = [name for name in self.failing if now - self._faults[name].since > _PASSING_SECONDS]
        if lasting and len(self.failing) == len(self._names):
            has_no_leader = any("has no leader" in fault.reason for fault in self._faults.values())
            code = "store.quorum" if has_no_leader else "store.away"
            yield found(code, complaint=self.complaint, evidence=self._figures(now))
        elif lasting:
            yield found(
                "store.member",
                failing=len(self.failing),
                all=len(self._names),
                fail=_fail(len(self.failing)),
                complaint=self.complaint,
                evidence=self._figures(now),
            )
        recent = [seconds for at, seconds in self._calls if now - at < _RECENT_SECONDS]
        if len(recent) >= _FEWEST and statistics.median(recent) > _SLOW_SECONDS and not lasting:
            median = f"{statistics.median(recent):.1f}"
            yield found("store.slow", calls=len(recent), seconds=median, evidence=self._figures(now))

    def _figures(self, now: float) -> str:
        """`last answer 34 s ago; the last 20 calls took 0.003 s (median) to 5.000 s`."""
        said = "no answer yet" if self._answered_at is None else f"last answer {now - self._answered_at:.0f} s ago"
        if not self._calls:
            return said
        times = [seconds for _, seconds in self._calls]
        return (
            f"{said}; the last {len(times)} calls took {statistics.median(times):.3f} s (median) "
            f"to {max(times):.3f} s"
        )


def _fail(number: int) -> str:
    return "fails" if number == 1 else "fail"
