"""Kubernetes Events: what `kubectl describe node` shows of a node whose lease is not as it should be."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.formats.text import visible
from flannelette.services.lease.stores.kube.client import KubeClient
from flannelette.services.lease.stores.kube.values import Gone, NodeProblem, Problem, Timing
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_PAUSE: Final = 0.1
"""Seconds between two writes: a wrong network concerns all nodes at once."""
_LONGEST: Final = 1000
"""Characters of a message."""
_AGENT: Final = "flannelette-lease"


class NodeEvents:
    """Writes the problems of nodes as Events, in a task of its own: nobody waits for it, and no failure ends it.

    A node has one Event for each kind of problem, of the same name whichever process writes it. While the problem
    lasts, its count grows every `Timing.event_repeat` seconds, since the API server forgets an Event after an hour.
    `standing` returns the problems that last and of which nobody calls `note` again.
    """

    def __init__(
        self, client: KubeClient, timing: Timing, standing: Callable[[], Iterable[NodeProblem]] = tuple
    ) -> None:
        self._client = client
        self._timing = timing
        self._standing = standing
        self._due: dict[tuple[str, Problem], str] = {}
        self._written: dict[tuple[str, Problem], tuple[str, float]] = {}
        """The last message of a problem, and when it was written."""
        self._counts: dict[str, int] = {}
        """Counts of the Events that this process has seen, by the Event's name."""
        self._noted = asyncio.Event()
        self._is_failing = False

    def note(self, found: NodeProblem) -> None:
        """A node has this problem now. Returns at once."""
        key, message = (found.node, found.problem), visible(str(found))[:_LONGEST]
        before, at = self._written.get(key, ("", 0.0))
        pause = self._timing.event_repeat if message == before else self._timing.event_pause
        if before and time.monotonic() - at < pause:
            return
        self._due[key] = message
        self._noted.set()

    async def run(self) -> None:
        """Writes the Events until cancelled, and repeats those of problems that last."""
        repeat = self._timing.event_repeat
        while True:
            now = time.monotonic()
            self._written = {key: written for key, written in self._written.items() if now - written[1] < 2 * repeat}
            for found in self._standing():
                self.note(found)
            while (left := now + repeat - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._noted.wait()
                if self._noted.is_set():
                    await self._write_all()

    async def _write_all(self) -> None:
        self._noted.clear()
        try:
            while self._due:
                key, message = next(iter(self._due.items()))
                await self._write(*key, message)
                self._written[key] = message, time.monotonic()
                if self._due.get(key) == message:
                    del self._due[key]
                await asyncio.sleep(_PAUSE)
        except (Unavailable, Gone) as error:
            if not self._is_failing:
                log.warning("Events of nodes cannot be written: not said again until one is", reason=str(error))
            self._is_failing = True
            await asyncio.sleep(self._timing.event_pause)
            self._noted.set()
        else:
            self._is_failing = False

    async def _write(self, node: str, problem: Problem, message: str) -> None:
        """One more of this Event, or the first. An Event of an earlier process is taken over with its count."""
        name = f"{node}.{_AGENT}.{problem.value.lower()}"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        news: dict[str, object] = {"message": message, "lastTimestamp": now}
        if name in self._counts:
            news["count"] = self._counts[name] + 1
        try:
            event = await self._client.patch_event(name, news)
        except Gone:
            event = await self._client.make_event(
                {
                    "metadata": {"name": name},
                    "involvedObject": {"kind": "Node", "name": node, "uid": node},  # as a kubelet writes it
                    "type": "Warning",
                    "reason": problem.value,
                    "source": {"component": _AGENT},
                    "reportingComponent": _AGENT,
                    "firstTimestamp": now,
                    "count": 1,
                    **news,
                }
            )
        count = event.get("count")
        self._counts[name] = count if isinstance(count, int) else 1
