"""The etcd lease that each node's keys hang on: one, kept alive, found again after a restart."""

import asyncio
import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.limits import nearest_time
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient

_EXPIRY_SECONDS: Final = 5.0
_ASKED_SECONDS: Final = 10.0
_MOST_ASKED: Final = 5_000
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class EtcdLease:
    """An etcd lease that is alive."""

    number: int
    expires_at: float
    """Unix seconds, whole ones: they read well and survive the wire unchanged."""


class EtcdLeases:
    """Remembers the number of each node's etcd lease; what the keys say counts more."""

    def __init__(self, client: EtcdClient, seconds: int, alive_seconds: float) -> None:
        self._client = client
        self._alive_seconds = alive_seconds
        self._seconds = seconds
        self._remembered: dict[str, int] = {}
        self._asking = asyncio.Lock()
        self._asked_until = 0.0
        self._expiry: dict[int, float] = {}

    async def keep(self, node: str, found: int) -> EtcdLease:
        """The node's etcd lease with its full time: the one that its holder key hangs on, else the last, else new.

        One that was granted a shorter time than is set now is left to run out.
        """
        for number in dict.fromkeys((found, self._remembered.get(node, 0))):
            now = time.time()
            seconds = await self._client.keep_alive(number) if number else 0
            if seconds >= self._seconds:
                return self._remember(node, number, now + seconds)
        number = random.randrange(1, 1 << 63)  # noqa: S311 - must be unused, not secret
        self._remembered[node] = number  # before the answer, which may be lost
        now = time.time()
        seconds = await self._client.grant(number, self._seconds)
        return self._remember(node, number, now + seconds)

    async def is_fresh(self, number: int) -> bool:
        """Whether it was granted or kept alive a moment ago: its node was connected then."""
        return self.is_recent(await self.renewed_ago(number))

    async def renewed_ago(self, number: int) -> float:
        """Seconds since it was granted or kept alive; infinite if there is none."""
        return await self._client.renewed_ago(number) if number else math.inf

    def is_recent(self, seconds_ago: float) -> bool:
        """Whether a sign of life of that time still counts."""
        return seconds_ago < self._alive_seconds

    async def expiry_times(self, numbers: Mapping[str, int]) -> dict[str, float]:
        """When these etcd leases expire, in Unix seconds, by the same names, as far as etcd says it in time.

        Asks at most _MOST_ASKED, and nothing for _ASKED_SECONDS after it has asked.
        """
        async with self._asking:
            if time.monotonic() >= self._asked_until:
                self._asked_until = time.monotonic() + _ASKED_SECONDS
                self._expiry = {}
                asked = sorted(set(numbers.values()))[:_MOST_ASKED]
                with suppress(TimeoutError, Unavailable):
                    async with asyncio.timeout(_EXPIRY_SECONDS):
                        for first in range(0, len(asked), _AT_ONCE):
                            await asyncio.gather(*map(self._note_expiry, asked[first : first + _AT_ONCE]))
        return {name: self._expiry[number] for name, number in numbers.items() if number in self._expiry}

    async def _note_expiry(self, number: int) -> None:
        now = time.time()
        if seconds := await self._client.expires_in(number):
            self._expiry[number] = float(int(nearest_time(now + seconds)))

    async def drop(self, node: str, found: int) -> None:
        """Revokes the node's etcd lease, if nothing hangs on it: the one that was found, else the last."""
        number = found or self._remembered.get(node, 0)
        if number and not await self._client.keys_on(number):
            await self._client.revoke(number)
        if self._remembered.get(node) == number:
            del self._remembered[node]

    def _remember(self, node: str, number: int, expires_at: float) -> EtcdLease:
        self._remembered[node] = number
        return EtcdLease(number, float(int(nearest_time(expires_at))))
