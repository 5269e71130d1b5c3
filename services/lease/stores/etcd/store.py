"""The store etcd: flannel's keys, compare-and-swap, one watch."""

import random
from collections.abc import AsyncGenerator

from flannelette.services.core.family import Family
from flannelette.services.core.ipam.subnet_choice import Draw
from flannelette.services.core.ipam.subnet_pool import Usage
from flannelette.services.core.leases.progress import Progress
from flannelette.services.lease.progress.connected import ALIVE_SECONDS, ConnectedNodes
from flannelette.services.lease.stores.etcd.acquire import NodeCalls
from flannelette.services.lease.stores.etcd.etcd_leases import EtcdLeases
from flannelette.services.lease.stores.etcd.keys import Keyspace
from flannelette.services.lease.stores.etcd.operator import OperatorCalls
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient
from flannelette.services.lease.stores.etcd.rpc.members import Timing
from flannelette.services.lease.stores.etcd.rpc.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.sessions import Sessions, SessionTiming
from flannelette.services.lease.stores.etcd.transactor import Replica, Transactor
from flannelette.services.lease.stores.etcd.watch import KIND, Watcher
from flannelette.services.lease.stores.store import Snapshot, StoreEvent


class EtcdStore:
    """A Store (services/lease/stores/store.py) in etcd v3.

    Every write is a compare-and-swap on what was looked at; repeated after a lost answer it changes nothing more.
    Construction opens nothing; it raises Misconfigured for files that cannot be used. `node` is the node that the
    process serves, empty if central: etcd sees it in the user agent. A node counts as alive as long as it has a
    session, and for `alive_seconds` after it was given a lease or renewed it. `keep_sessions` runs for as long as the
    store is in use: it tells other lease services which nodes' dataplanes are connected to this one.
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
        etcd_leases = self._etcd_leases = EtcdLeases(self._client, lease_seconds, alive_seconds)
        nodes = NodeCalls(self._replica, transactor, etcd_leases, draw)
        operators = OperatorCalls(transactor, etcd_leases)
        self.acquire, self.renew, self.release = nodes.acquire, nodes.renew, nodes.release
        connected_nodes.judge = nodes.stranger
        self.reserve, self.unreserve, self.reclaim = operators.reserve, operators.unreserve, operators.reclaim
        self.discard = operators.discard
        service = node or "central"
        sessions = Sessions(self._client, self._replica, transactor, connected_nodes, service, session_timing)
        self.keep_sessions, self.close = sessions.run, self._client.close
        self.check_members, self.findings = self._client.check_members, self._client.findings

    def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store; the order of events is in Watcher."""
        return Watcher(self._client, self._replica, self._timing).events()

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family, as far as the watch has told."""
        return self._replica.prefix.usage(family)

    async def expiry_times(self) -> dict[str, float]:
        """See KnowsExpiry."""
        return await self._etcd_leases.expiry_times(self._replica.prefix.etcd_leases())

    async def relist(self) -> Snapshot:
        """See Store."""
        return (await self._replica.anew()).snapshot()

    async def report(self, progress: Progress) -> float:
        """See Store. Nobody asks this store."""
        return 0.0
