"""The store etcd: flannel's keys, compare-and-swap, one watch."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from services.core.family import Family, Network
from services.core.lease import Lease, LeaseRequest
from services.core.occupancy import Usage
from services.core.progress import Progress
from services.core.subnets import Draw
from services.lease.administration import Reclaim, Reclaimed
from services.lease.presence import ALIVE_SECONDS, Presence
from services.lease.store import Snapshot, StoreEvent
from services.lease.stores.etcd.acquiring import Acquiring
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.discarding import discard
from services.lease.stores.etcd.etcd_leases import EtcdLeases
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.leasing import Leasing
from services.lease.stores.etcd.members import Timing
from services.lease.stores.etcd.operator_calls import OperatorCalls
from services.lease.stores.etcd.relisting import relist
from services.lease.stores.etcd.sessions import Sessions, SessionTiming
from services.lease.stores.etcd.settings import EtcdSettings
from services.lease.stores.etcd.watching import KIND, Watcher
from services.lease.stores.etcd.writer import Writer


class EtcdStore:
    """A Store (services.lease.store) in etcd v3.

    Every write is a compare-and-swap on what was looked at; repeated after a lost answer it changes nothing more.
    Construction opens nothing; it raises Misconfigured for files that cannot be used. `node` is the node that the
    process serves, empty if central: etcd sees it in the user agent. A node counts as alive as long as it has a
    session, and for `alive_seconds` after it was given a lease or renewed it.
    """

    kind = KIND

    def __init__(
        self,
        settings: EtcdSettings,
        *,
        node: str = "",
        lease_seconds: int = 86_400,
        presence: Presence | None = None,
        alive_seconds: float = ALIVE_SECONDS,
        timing: Timing | None = None,
        session_timing: SessionTiming | None = None,
        draw: Draw = random.randrange,
    ) -> None:
        self._timing = timing or Timing()
        self._client = EtcdClient(settings, self._timing, f"flannelette-lease/{node or 'central'}")
        self._keyspace = Keyspace(settings.prefix)
        self._decoder = Decoder()
        self._index = Index(self._keyspace, self._decoder)
        etcd_leases = EtcdLeases(self._client, lease_seconds, alive_seconds)
        writer = Writer(self._client, self._keyspace, self._decoder, self._index)
        self._acquiring = Acquiring(self._client, self._keyspace, self._index, writer, etcd_leases, draw)
        self._leasing = Leasing(self._client, self._keyspace, self._decoder, self._index, etcd_leases)

        self._operator_calls = OperatorCalls(self._keyspace, self._index, writer, etcd_leases)
        presence = presence or Presence()
        presence.elsewhere = self._index.sessions.keys()
        self._sessions = Sessions(
            self._client, self._keyspace, self._index, presence, node or "central", session_timing
        )

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store; the order of events is in Watcher."""
        watcher = Watcher(self._client, self._keyspace, self._decoder, self._timing, self._index)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield event

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family, as far as the watch has told."""
        return self._index.usage(family)

    async def keep_sessions(self) -> None:
        """For ever: tells other lease services which nodes' dataplanes are connected to this one."""
        await self._sessions.run()

    async def relist(self) -> Snapshot:
        """See Store."""
        return await relist(self._client, self._keyspace, self._decoder)

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store."""
        return await self._acquiring.acquire(request)

    async def renew(self, node: str, name: str) -> Lease:
        """See Store."""
        return await self._leasing.renew(node, name)

    async def release(self, node: str, name: str) -> None:
        """See Store."""
        await self._leasing.release(node, name)

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """See Store."""
        return await self._operator_calls.reserve(cidrs, node)

    async def unreserve(self, name: str) -> None:
        """See Store."""
        await self._operator_calls.unreserve(name)

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """See Store."""
        return await self._operator_calls.reclaim(wanted, dry_run=dry_run)

    async def report(self, progress: Progress) -> None:
        """See Store. Nobody asks this store."""

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store."""
        await discard(self._client, self._keyspace, self._decoder, key, seen)

    async def close(self) -> None:
        """See Store."""
        await self._client.close()
