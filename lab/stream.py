"""A stream of pings, which counts what is lost."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from lab.pings import Pinger
from lab.topology import Address


@dataclass(frozen=True, slots=True)
class Path:
    """The path of pings from a pod to another."""

    source: str
    target: str
    pinger: Pinger
    address: Address


@dataclass(frozen=True, slots=True)
class Lost:
    """A ping of a stream that nobody answered."""

    path: Path
    sent: float
    """When it was sent, on the clock of time.monotonic()."""


class Stream:
    """100 pings a second on each path, while its block runs, or one each `interval`; then `sent` and `lost` stand."""

    INTERVAL: Final = 0.01
    PATIENCE: Final = 2.0
    """How long after the end a reply still counts."""

    def __init__(self, paths: Sequence[Path], interval: float = INTERVAL) -> None:
        self.sent = 0
        self._paths = paths
        self._interval = interval
        self._waiting: dict[int, Lost] = {}
        self._answered_all = asyncio.Event()

    @property
    def lost(self) -> list[Lost]:
        """What nobody has answered so far."""
        return list(self._waiting.values())

    @property
    def outage(self) -> float:
        """Seconds from the first lost ping until the one after the last."""
        times = [lost.sent for lost in self.lost]
        return max(times) - min(times) + self._interval if times else 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._send_for_ever(), name="pings")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._waiting:
            self._answered_all.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._answered_all.wait(), self.PATIENCE)

    async def _send_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for path in self._paths:
                self._send(path)
            due = max(due + self._interval, loop.time())  # a late round is not made up for: bursts are no stream
            await asyncio.sleep(due - loop.time())

    def _send(self, path: Path) -> None:
        lost = Lost(path, time.monotonic())
        key = self.sent
        self.sent += 1
        self._waiting[key] = lost
        path.pinger.send(path.address, lambda: self._take(key))

    def _take(self, key: int) -> None:
        del self._waiting[key]
        if not self._waiting:
            self._answered_all.set()
