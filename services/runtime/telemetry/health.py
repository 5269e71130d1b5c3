"""Readiness as a set of conditions, each with the reason why it does not hold."""

import asyncio


class Health:
    """Ready when no condition has a reason against it.

    The same answer goes to gRPC health, `/readyz` and the status calls.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._of_host: set[str] = set()
        self._changed = asyncio.Event()
        self._stopping = False

    def set(self, condition: str, reason: str = "", *, of_host: bool = False) -> None:
        """Says why the condition does not hold; empty: it holds.

        `of_host`: others have to make it hold, and may wait for the start of this service to do so.
        """
        if of_host:
            self._of_host.add(condition)
        if self._reasons.get(condition) != reason:
            self._reasons[condition] = reason
            self._changed.set()

    def stop(self) -> None:
        """Not ready any more, for good."""
        self._stopping = True
        self._changed.set()

    @property
    def reasons(self) -> list[str]:
        """Why not ready, one sentence each, oldest condition first. Empty when ready."""
        return ["the service is stopping"] if self._stopping else [r for r in self._reasons.values() if r]

    @property
    def has_started(self) -> bool:
        """Whether every condition holds that the service itself can make hold."""
        return not self._stopping and not any(r for name, r in self._reasons.items() if name not in self._of_host)

    @property
    def ready(self) -> bool:
        """Whether every condition holds."""
        return not self.reasons

    async def changed(self) -> None:
        """Returns when something may have changed since the last call."""
        await self._changed.wait()
        self._changed.clear()
