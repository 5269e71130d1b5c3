"""The store etcd: flannel's keys, compare-and-swap, one watch."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from services.core.family import Family, Network
from services.core.ipam.subnet_choice import Draw
from services.core.ipam.subnet_pool import Usage
from services.core.leases.lease import Lease, LeaseRequest
from services.core.leases.progress import Progress
from services.lease.progress.connected import ALIVE_SECONDS, ConnectedNodes
from services.lease.stores.etcd.acquire import NodeCalls
from services.lease.stores.etcd.etcd_leases import EtcdLeases
from services.lease.stores.etcd.keys import Keyspace
from services.lease.stores.etcd.operator import OperatorCalls
from services.lease.stores.etcd.rpc.client import EtcdClient
from services.lease.stores.etcd.rpc.members import Timing
from services.lease.stores.etcd.rpc.settings import EtcdSettings
from services.lease.stores.etcd.sessions import Sessions, SessionTiming
from services.lease.stores.etcd.transactor import Replica, Transactor
from services.lease.stores.etcd.watch import KIND, Watcher
from services.lease.stores.store import Reclaim, Reclaimed, Snapshot, StoreEvent


class EtcdStore:
    """A Store (services.lease.stores.store) in etcd v3.

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
        connected_nodes: ConnectedNodes | None = None,
        alive_seconds: float = ALIVE_SECONDS,
        timing: Timing | None = None,
        session_timing: SessionTiming | None = None,
        draw: Draw = random.randrange,
    ) -> None:
        self._timing = timing or Timing()
        self._client = EtcdClient(settings, self._timing, f"flannelette-lease/{node or 'central'}")
        keyspace, connected_nodes = Keyspace(settings.prefix), connected_nodes or ConnectedNodes()
        self._replica = Replica(self._client, keyspace, connected_nodes)
        transactor = Transactor(self._client, keyspace, self._replica)
        etcd_leases = EtcdLeases(self._client, lease_seconds, alive_seconds)
        self._node_calls = NodeCalls(self._replica, transactor, etcd_leases, draw)
        self._operator_calls = OperatorCalls(transactor, etcd_leases)
        self._sessions = Sessions(
            self._client, self._replica, transactor, connected_nodes, node or "central", session_timing
        )

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store; the order of events is in Watcher."""
        watcher = Watcher(self._client, self._replica, self._timing)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield event

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family, as far as the watch has told."""
        return self._replica.prefix.usage(family)

    async def keep_sessions(self) -> None:
        """For ever: tells other lease services which nodes' dataplanes are connected to this one."""
        await self._sessions.run()

    async def relist(self) -> Snapshot:
        """See Store."""
        return (await self._replica.anew()).snapshot()

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store."""
        return await self._node_calls.acquire(request)

    async def renew(self, node: str, name: str) -> Lease:
        """See Store."""
        return await self._node_calls.renew(node, name)

    async def release(self, node: str, name: str) -> None:
        """See Store."""
        await self._node_calls.release(node, name)

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
        await self._operator_calls.discard(key, seen)

    async def close(self) -> None:
        """See Store."""
        await self._client.close()
