"""The schedule of probes: which peer is probed next. Pure.

Each key has its turn once in an interval: ten seconds, or longer where the rate does not allow that. One that is in
doubt has its turn after a second, but only one turn of two goes to those.
"""

import heapq
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

K = TypeVar("K")

REST_SECONDS: Final = 10.0
"""Between two turns of a peer that answers."""
DOUBT_SECONDS: Final = 1.0
"""Between two turns of a peer whose last probe was not answered."""


class Schedule(Generic[K]):
    """Keys and when each is due. Times are seconds of one clock."""

    def __init__(self, turns_per_second: float) -> None:
        self._pause = 1 / turns_per_second
        self._queue: list[tuple[float, int, K]] = []
        self._doubts: list[tuple[float, int, K]] = []
        self._keys: dict[K, int] = {}
        """With the number of the entry that counts; others are former ones."""
        self._numbers = 0
        self._free_at = 0.0
        """When the rate allows the next turn."""
        self._was_doubt = False

    def keep(self, keys: Iterable[K], now: float) -> None:
        """Has these keys and no others; new ones are due at once, in their order."""
        wanted = dict.fromkeys(keys)
        for key in self._keys.keys() - wanted.keys():
            del self._keys[key]
        for key in wanted:
            if key not in self._keys:
                self._push(self._queue, now, key)

    def next_at(self) -> float | None:
        """When the next turn is; None: there is no key."""
        first = [queue[0][0] for queue in (self._queue, self._doubts) if self._trim(queue)]
        return max(min(first), self._free_at) if first else None

    def take(self, now: float) -> K | None:
        """The key whose turn it is now, which then waits for its next one; None: none is due."""
        if now < self._free_at:
            return None
        due = [queue for queue in (self._queue, self._doubts) if self._trim(queue) and queue[0][0] <= now]
        if not due:
            return None
        queue = due[-1 if not self._was_doubt else 0]
        self._was_doubt = queue is self._doubts
        key = heapq.heappop(queue)[2]
        self._free_at = now + self._pause
        self._push(self._queue, now + max(REST_SECONDS, len(self._keys) * self._pause), key)
        return key

    def doubt(self, key: K, now: float) -> None:
        """Gives a key its next turn sooner."""
        if key in self._keys:
            self._push(self._doubts, now + DOUBT_SECONDS, key)

    def _push(self, queue: list[tuple[float, int, K]], when: float, key: K) -> None:
        self._numbers += 1
        self._keys[key] = self._numbers
        heapq.heappush(queue, (when, self._numbers, key))

    def _trim(self, queue: list[tuple[float, int, K]]) -> bool:
        """Drops former entries from the front. True: there is one that counts."""
        while queue and self._keys.get(queue[0][2]) != queue[0][1]:
            heapq.heappop(queue)
        return bool(queue)
