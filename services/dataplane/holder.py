"""Holds the lease of this node: acquires, renews in time, acquires again when it is lost."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from services.core.errors import FlanneletteError, NotFound
from services.core.lease import Lease, LeaseRequest
from services.core.table import Table
from services.runtime.feed import LeaseConnection

log = structlog.get_logger()

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 10.0
_RENEW_AGAIN: Final = 60.0
"""Seconds after a failed renewal, as in flannel."""


class Holder:
    """One job. `lease` is the last lease we know to be ours; it stays in force while a new one is sought."""

    def __init__(self, connection: LeaseConnection, margin_seconds: float, changed: Callable[[], None]) -> None:
        self.lease: Lease | None = None
        self.reason = "no lease yet"
        """Why the lease is missing or in doubt; empty when it is held."""
        self.renew_at: float | None = None
        """Unix time of the next renewal; None: never."""
        self._connection = connection
        self._margin = margin_seconds
        self._changed = changed
        self._request: LeaseRequest | None = None
        self._confirmed = False
        """The table had the lease as we hold it; from then on its absence means something."""
        self._wake = asyncio.Event()

    def want(self, request: LeaseRequest) -> None:
        """What to publish from now on; acquires when it differs from what is held."""
        if request != self._request:
            self._request = request
            self._doubt("the lease is being acquired")

    def observe(self, table: Table) -> None:
        """Looks whether a synced table still has the own lease as we published it."""
        if self.lease is None or not table.synced:
            return
        seen = table.leases.get(self.lease.name)
        if seen is not None and _says_the_same(seen, self.lease):
            self._confirmed = True
        elif self._confirmed and not self.reason:
            held = seen is not None and seen.node == self.lease.node
            self._doubt(f"the lease {self.lease.name} was {'changed by somebody else' if held else 'revoked'}")
            log.warning("lease lost; acquiring again", reason=self.reason)

    async def run(self) -> None:
        """For ever."""
        pause = _FIRST_PAUSE
        while True:
            request = self._request
            if request is None:
                await self._sleep(None)
            elif self.reason:
                try:
                    await self._acquire(request)
                    pause = _FIRST_PAUSE
                except FlanneletteError as error:
                    self._report(str(error))
                    await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter
                    pause = min(2 * pause, _LONGEST_PAUSE)
            elif self.renew_at is not None and time.time() >= self.renew_at:
                await self._renew()
            else:
                await self._sleep(self.renew_at)

    async def _acquire(self, request: LeaseRequest) -> None:
        lease = await self._connection.acquire(_with_previous(request, self.lease))
        if self.lease is None or lease.name != self.lease.name:
            log.info("lease acquired", lease=lease.name, previous=self.lease.name if self.lease else None)
        if request == self._request:
            self._hold(lease)

    async def _renew(self) -> None:
        assert self.lease is not None  # noqa: S101 - there is a time to renew only with a lease
        try:
            self._hold(await self._connection.renew(self.lease.name))
            log.info("lease renewed", lease=self.lease.name)
        except NotFound as error:
            self._report(str(error))
        except FlanneletteError as error:
            log.warning("the lease could not be renewed; trying again in a minute", reason=str(error))
            self.renew_at = time.time() + _RENEW_AGAIN

    def _hold(self, lease: Lease) -> None:
        now = time.time()
        if lease.expires_at is None:
            self.renew_at = None
        else:
            self.renew_at = lease.expires_at - min(self._margin, (lease.expires_at - now) / 2)
        self._confirmed = self._confirmed and self.lease is not None and _says_the_same(lease, self.lease)
        self.lease, self.reason = lease, ""
        self._changed()

    def _doubt(self, reason: str) -> None:
        self.reason = reason
        self._wake.set()
        self._changed()

    def _report(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("no lease", reason=reason)
            self.reason = reason
            self._changed()

    async def _sleep(self, until: float | None) -> None:
        self._wake.clear()
        try:
            # The wall clock may jump (suspend, NTP), so look at it at least every minute.
            async with asyncio.timeout(None if until is None else min(max(until - time.time(), 0), 60)):
                await self._wake.wait()
        except TimeoutError:
            pass


def _says_the_same(seen: Lease, held: Lease) -> bool:
    """Whether both are one lease of one node with one content; times are the store's business."""
    return (seen.node, seen.subnets, seen.backend_type) == (held.node, held.subnets, held.backend_type)


def _with_previous(request: LeaseRequest, lease: Lease | None) -> LeaseRequest:
    if lease is None:
        return request
    held = {subnet.cidr.version: subnet.cidr for subnet in lease.subnets}
    wishes = (replace(w, previous=held.get(w.public_address.version, w.previous)) for w in request.wishes)
    return replace(request, wishes=tuple(wishes))
