"""Readiness as a set of conditions, each with the reason why it does not hold."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from flannelette.services.core.conditions import ROWS, SOON, Condition, found, gravest, unready
from flannelette.services.core.errors import Unavailable


def _found_by(find: Callable[[], Iterable[Condition]]) -> Iterator[Condition]:
    """Findings of a check. A check that fails is a finding itself: it ends no service, and is no success."""
    try:
        yield from list(find())
    except (OSError, Unavailable) as error:
        yield found("service.own-checks", error=error)


class Health:
    """The readiness of the service: it is ready when every condition holds.

    gRPC health and the status calls report it. `/readyz` reports `is_in_service` (ADR 36).
    """

    def __init__(self) -> None:
        self.finders: list[Callable[[], Iterable[Condition]]] = []
        """What looks for problems of the service that leave it ready."""
        self._reasons: dict[str, str] = {}
        self._of_host: set[str] = set()
        self._outages: set[str] = set()
        self._was_ready = False
        self._changed = asyncio.Event()
        self._stopping = False

    def set(self, condition: str, reason: str = "", *, of_host: bool = False, outage: bool = False) -> None:
        """Sets the reason why the condition does not hold; empty: it holds.

        `of_host`: the condition depends on other programs, which may wait for the start of this service.
        `outage`: the condition is that another service answers, and what that said last stays in force meanwhile.
        """
        if of_host:
            self._of_host.add(condition)
        if outage:
            self._outages.add(condition)
        if self._reasons.get(condition) != reason:
            self._reasons[condition] = reason
            self._was_ready = self._was_ready or self.ready
            self._changed.set()

    def stop(self) -> None:
        """Makes the service not ready for good."""
        self._stopping = True
        self._changed.set()

    @property
    def reasons(self) -> list[str]:
        """The reasons why the service is not ready, a sentence each, oldest condition first. Empty: ready."""
        return ["the service is stopping"] if self._stopping else [r for r in self._reasons.values() if r]

    @property
    def unready(self) -> list[Condition]:
        """The reasons as conditions.

        While another service is away, what waits for it, as its row says, loses nothing yet: the kernel keeps it.
        """
        if self._stopping:
            return [unready("stopping", *self.reasons)]
        told = {key: unready(key, reason) for key, reason in self._reasons.items() if reason}
        away = {each.code for key, each in told.items() if key in self._outages}
        waiting = {each.code for each in told.values() if away.intersection((each.code, *ROWS[each.code].after))}
        return [replace(e, weight=max(e.weight, SOON)) if e.code in waiting else e for e in told.values()]

    @property
    def findings(self) -> list[Condition]:
        """What is found now, the gravest first."""
        return gravest(each for find in self.finders for each in _found_by(find))

    @property
    def has_started(self) -> bool:
        """Whether all conditions hold that do not depend on other programs."""
        return not self._stopping and not any(r for name, r in self._reasons.items() if name not in self._of_host)

    @property
    def ready(self) -> bool:
        """Whether every condition holds."""
        return not self.reasons

    @property
    def is_in_service(self) -> bool:
        """Whether every condition holds, or has held once and since then all do but those that are `outage`."""
        if self._stopping or not self._was_ready:
            return False
        return not any(reason for name, reason in self._reasons.items() if name not in self._outages)

    async def changed(self) -> None:
        """Waits for a change since the last call."""
        await self._changed.wait()
        self._changed.clear()
