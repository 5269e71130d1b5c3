"""AcquireLease in etcd: who waits together is served together, in one transaction."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Final

from services.core.conflicts import identities_in
from services.core.errors import Exhausted, FlanneletteError, Unavailable
from services.core.lease import Lease, LeaseRequest
from services.core.subnets import Draw
from services.lease.allocation import Allocation, allocate, rivals_of
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.etcd_leases import EtcdLease, EtcdLeases
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.leasing import living
from services.lease.stores.etcd.records import Transaction
from services.lease.stores.etcd.transactions import Joined, clearing, taking
from services.lease.stores.etcd.writer import Writer
from services.runtime.logs import get_logger

log = get_logger()

_TOGETHER: Final = 24
"""Requests in one transaction, if it has room; fewer after each lost race."""
_ORPHANS_AT_ONCE: Final = 20
_LOST: Final = "other nodes were faster too many times: try again"


@dataclass(slots=True, eq=False)
class _Wanted:
    """A request that waits."""

    request: LeaseRequest
    etcd_lease: EtcdLease | None
    """The node's, if it was asked for before; used for one try, of the second on it may be gone."""
    outcome: tuple[Allocation, EtcdLease] | FlanneletteError | None = None


class Acquiring:
    """Whoever comes to the turn serves all who wait, so that a herd costs few round trips. `acquire` as in Store."""

    def __init__(
        self,
        client: EtcdClient,
        keyspace: Keyspace,
        index: Index,
        writer: Writer,
        etcd_leases: EtcdLeases,
        draw: Draw = random.randrange,
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._index = index
        self._writer = writer
        self._etcd_leases = etcd_leases
        self._draw = draw
        self._waiting: dict[_Wanted, None] = {}

    async def acquire(self, request: LeaseRequest) -> Lease:
        """The order of choice is in allocate()."""
        # Before it is our turn, for it takes a round trip that others need not wait for.
        wanted = _Wanted(request, await self._keep(request) if self._index.live else None)
        self._waiting[wanted] = None
        try:
            async with self._writer.turn:
                if wanted.outcome is None:
                    await self._serve()
        finally:
            del self._waiting[wanted]
        if isinstance(wanted.outcome, FlanneletteError):
            raise type(wanted.outcome)(*wanted.outcome.args)  # its own, for it may be that of many
        assert wanted.outcome is not None  # noqa: S101 - who is first in the line is served
        allocation, etcd_lease = wanted.outcome
        _tell(allocation, request.node)
        lease = self._index.dated(allocation.lease)
        return replace(lease, expires_at=None if lease.reserved else etcd_lease.expires_at)

    async def _serve(self) -> None:
        """Gives an outcome to those who wait, at least to the first."""
        waiting = [wanted for wanted in self._waiting if wanted.outcome is None]
        tries, batch = 0, waiting[:_TOGETHER]

        async def decide() -> tuple[Transaction, list[tuple[_Wanted, Allocation, EtcdLease]]]:
            nonlocal tries, batch
            batch = [wanted for wanted in waiting[: max(_TOGETHER >> tries, 1)] if wanted.outcome is None]
            tries += 1
            return await self._decide(batch)

        try:
            for wanted, allocation, etcd_lease in await self._writer.write_in_turn(decide, _LOST):
                wanted.outcome = allocation, etcd_lease
            await self._clear_orphans()
        except FlanneletteError as error:
            for wanted in batch:
                wanted.outcome = wanted.outcome or error

    async def _decide(
        self, batch: Sequence[_Wanted]
    ) -> tuple[Transaction, list[tuple[_Wanted, Allocation, EtcdLease]]]:
        """What all of them get, or as many as go into one transaction; who is refused has the outcome."""
        alive = [await self._living_rivals(wanted.request) for wanted in batch]
        kept = await asyncio.gather(*(self._etcd_lease(wanted) for wanted in batch), return_exceptions=True)
        # From here on nothing is awaited, so that all is decided on one state of the index.
        joined, served = Joined(), list[tuple[_Wanted, Allocation, EtcdLease]]()
        with ExitStack() as until_written:
            for wanted, living, etcd_lease in zip(batch, alive, kept, strict=True):
                try:
                    if isinstance(etcd_lease, BaseException):
                        raise etcd_lease
                    allocation = self._allocate(wanted.request, living)
                    transaction = taking(self._keyspace, self._index, allocation, etcd_lease.number)
                except Exhausted as error:
                    if not served:  # else it may be that what is given to the others now does not come to pass
                        wanted.outcome = error
                    continue
                except FlanneletteError as error:
                    wanted.outcome = error
                    continue
                if not joined.take(transaction, wanted.request):
                    continue
                served.append((wanted, allocation, etcd_lease))
                if allocation.current is None:
                    for cidr in allocation.lease.cidrs:
                        self._index.occupancy.add(cidr)
                        until_written.callback(self._index.occupancy.remove, cidr)
        return joined.transaction, served

    async def _etcd_lease(self, wanted: _Wanted) -> EtcdLease:
        etcd_lease, wanted.etcd_lease = wanted.etcd_lease, None
        if etcd_lease and self._index.etcd_lease_of(wanted.request.node) in (0, etcd_lease.number):
            return etcd_lease
        return await self._keep(wanted.request)

    async def _keep(self, request: LeaseRequest) -> EtcdLease:
        """The etcd lease of the node. A request that is refused anyhow gets none. Raises as `allocate`."""
        self._allocate(request, await self._living_rivals(request))
        return await self._etcd_leases.keep(request.node, self._index.etcd_lease_of(request.node))

    def _allocate(self, request: LeaseRequest, living: frozenset[str]) -> Allocation:
        return allocate(self._index.claims, self._index.occupancy, request, self._draw, living.__contains__)

    async def _living_rivals(self, request: LeaseRequest) -> frozenset[str]:
        """Nodes that hold what this request wants to publish and are alive."""
        found = rivals_of(self._index.claims, request.node, identities_in(request.wishes))
        return await living(self._index, self._etcd_leases, {claim.node for claim in found})

    async def _clear_orphans(self) -> None:
        """Best effort: the next acquisition sees what is left."""
        with suppress(Unavailable):
            for transaction in clearing(self._keyspace, self._index.orphans)[:_ORPHANS_AT_ONCE]:
                if revision := await self._client.transact(transaction):
                    self._index.apply(transaction, revision, complete=False)


def _tell(allocation: Allocation, node: str) -> None:
    for rival in sorted(allocation.rivals):
        log.warning("a public address, MAC or key is taken over: its node is not alive", node=node, rival=rival)
    for claim in allocation.given_up:
        log.info("a lease is given up", lease=claim.name, held_by=claim.node, for_node=node)
    if allocation.current is None or allocation.current.node != node:
        log.info("lease given", lease=allocation.lease.name, node=node, adopted=allocation.current is not None)
