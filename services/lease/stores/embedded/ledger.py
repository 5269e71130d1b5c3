"""The leases of the embedded store in memory, one step behind the file that they are written to first, with times."""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.leases.flannel_json import parse_key
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, Removed, Upserted
from flannelette.services.lease.ipam.claims import Claim, Claims, claim_of
from flannelette.services.lease.stores.embedded.database import Database
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_AS_BEFORE: Final = MappingProxyType[str, str]({})
_TOLERANCE: Final = 5.0
"""Seconds. NTP moves a clock that is off by less without a jump; small steps add up."""


class ClockJumps:
    """`clock` is Unix time, `timer` one that only ever goes on. Neither knows what passed between two processes."""

    def __init__(self, clock: Callable[[], float], timer: Callable[[], float]) -> None:
        self._clock = clock
        self._timer = timer
        self._offset = self._now()

    @property
    def seconds(self) -> float:
        """How far the clock was set since the last `take`; 0 if that is next to nothing."""
        seconds = self._now() - self._offset
        return seconds if abs(seconds) > _TOLERANCE else 0.0

    def take(self) -> None:
        """What was written by the clock of before is right again."""
        self._offset = self._now()

    def _now(self) -> float:
        return self._clock() - self._timer()


class Ledger:
    """What is written here has happened, and is on disk. No call's time grows with the number of leases."""

    def __init__(self, database: Database) -> None:
        self.leases, self.machines, self.refused, stale = database.load()
        if stale:
            log.warning("rows of the lease database are written again", leases=len(stale))
            with suppress(Unavailable):  # told by the next write
                database.write(stale, machines=self.machines)
        self.claims = Claims()
        self.pending: list[Change] = []
        """What happened since the watch emptied this list."""
        self.released: set[str] = set()
        """Names of leases that were deleted on request since the watch emptied this set."""
        self.cleared: set[str] = set()
        """Names that were refused, and are gone since the watch emptied this set."""
        self._database = database
        self._times: list[tuple[float, str]] = []
        """A heap. A lease that was renewed is in it twice; only the time that it still has counts."""
        for lease in self.leases.values():
            self._note(lease)
        for name in self.refused:
            try:
                self.claims.put(Claim(name, "", parse_key(name), ()))
            except InvalidInput:
                continue  # no subnet, so it blocks none

    def write(
        self,
        put: Iterable[Lease] = (),
        delete: Iterable[str] = (),
        *,
        ran_out: bool = False,
        machines: Mapping[str, str] = _AS_BEFORE,
    ) -> None:
        """Deletes (on request, or because they `ran_out`) and puts, all or nothing. Raises Unavailable.

        `machines`: by the name of the lease, the token of the machine that holds it from now on.
        """
        put, delete = list(put), list(delete)
        machines = {**self.machines, **machines}
        self._database.write(put, delete, machines)
        self.machines = {name: machine for name, machine in machines.items() if machine and name not in delete}
        for name in delete:
            self.leases.pop(name, None)
            self.claims.drop(name)
            self.cleared |= {name} & self.refused.keys()
            self.refused.pop(name, None)
        if not ran_out:
            self.released.update(delete)
        for lease in put:
            self.released.discard(lease.name)
            self.leases[lease.name] = lease
            self._note(lease)
        self.pending += [*map(Removed, delete), *map(Upserted, put)]

    def run_out(self, now: float) -> list[str]:
        """The names of leases whose time is over; they stay until they are deleted."""
        gone = set[str]()
        while self._times and self.next_time <= now:
            gone.add(heapq.heappop(self._times)[1])
        for name in gone:  # once more, for whom the deletion fails
            heapq.heappush(self._times, (now, name))
        return sorted(gone)

    @property
    def next_time(self) -> float:
        """When the next lease runs out; infinite if none does."""
        while self._times and not self._counts(*self._times[0]):
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else math.inf

    def _counts(self, time: float, name: str) -> bool:
        lease = self.leases.get(name)
        return lease is not None and lease.expires_at is not None and lease.expires_at <= time

    def _note(self, lease: Lease) -> None:
        self.claims.put(claim_of(lease))
        if lease.expires_at is not None:
            heapq.heappush(self._times, (lease.expires_at, lease.name))
