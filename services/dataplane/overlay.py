"""The peers and what they need in the kernel: from leases, all or some of them, to the reconciler."""

import time
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from itertools import chain

import structlog

from services.core.lease import Lease
from services.core.plan import Plan
from services.dataplane import metrics
from services.dataplane.netlink.objects import KernelObject
from services.dataplane.peers import Peer, Situation, peer_of
from services.dataplane.reconciler import KernelPlan, Reconciler

log = structlog.get_logger()


class Overlay:
    """What is wanted, in which situation, and what the comparisons with the kernel have shown."""

    def __init__(self, node: str, reconciler: Reconciler) -> None:
        self.reconciler = reconciler
        self.situation: Situation | None = None
        self.peers: dict[str, Peer] = {}
        self.last_resync: float | None = None
        """Unix time."""
        self.last_resync_changes = 0
        self.repairs = 0
        self._node = node
        self._wanted: Counter[KernelObject] = Counter()
        """How many peers need an object: two leases of one node share its forwarding entry."""

    async def program_all(self, situation: Situation, leases: Iterable[Lease]) -> None:
        """Compares everything and brings it into line. Raises Unavailable; then it must be called again."""
        started = time.perf_counter()
        last, before, self.situation = self.situation, self._wanted, situation
        self.peers = {lease.name: peer_of(lease, situation) for lease in leases if lease.node != self._node}
        self._wanted = Counter(chain.from_iterable(peer.objects for peer in self.peers.values()))
        todo = await self.reconciler.resync(self._wanted.keys(), situation.scope(self.peers.values()))
        self.last_resync, self.last_resync_changes = time.time(), len(todo)
        metrics.RESYNC_SECONDS.observe(time.perf_counter() - started)
        if todo and last is not None:
            repairs = _repairs(todo, last, situation, before)
            self.repairs += repairs
            metrics.REPAIRS.inc(repairs)
        if todo or situation != last:
            log.info("kernel brought into line", peers=len(self.peers), put=len(todo.put), deleted=len(todo.delete))

    async def program_some(self, names: Iterable[str], leases: Mapping[str, Lease]) -> None:
        """The same for the leases of these names. Raises Unavailable; then `program_all` must be called."""
        assert self.situation is not None  # noqa: S101 - everything was programmed once before
        before: set[KernelObject] = set()
        after: set[KernelObject] = set()
        for name in names:
            old, lease = self.peers.pop(name, None), leases.get(name)
            if old is not None:
                before |= old.objects
                self._wanted.subtract(old.objects)
            if lease is not None and lease.node != self._node:
                peer = self.peers[name] = peer_of(lease, self.situation)
                after |= peer.objects
                self._wanted.update(peer.objects)
                if peer.ignored and (old is None or old.ignored != peer.ignored):
                    log.warning("a lease is ignored", lease=name, node=lease.node, reason=peer.ignored)
        gone = before - after
        after |= {item for item in gone if self._wanted[item] > 0}
        for item in gone - after:
            del self._wanted[item]
        await self.reconciler.update(before, after)

    async def plan(self, situation: Situation, leases: Iterable[Lease]) -> KernelPlan:
        """What `program_all` would do."""
        peers = [peer_of(lease, situation) for lease in leases if lease.node != self._node]
        wanted = frozenset(chain.from_iterable(peer.objects for peer in peers))
        todo, _ = await self.reconciler.compare(wanted, situation.scope(peers))
        return todo

    async def everything(self) -> KernelPlan:
        """What removes everything of ours but the devices, with which goes what is on them."""
        assert self.situation is not None  # noqa: S101 - as above
        scope = self.situation.scope()
        todo, _ = await self.reconciler.compare(frozenset(), scope)
        return Plan(frozenset(), frozenset(o for o in todo.delete if o.ifindex not in scope.domain.devices))

    def names(self) -> dict[int, str]:
        """Interface names by index, for texts."""
        return self.situation.links.names() if self.situation else {}


def _repairs(todo: KernelPlan, last: Situation, now: Situation, wanted: Container[KernelObject]) -> int:
    """How many of the changes no decision of ours explains; `wanted` is what was, in the situation of then."""
    if last.links.devices != now.links.devices and now.differs_by_devices_only(last):
        return len(todo)  # somebody took the device away with everything on it
    return sum(item in wanted for item in todo.put) + sum(item not in wanted for item in todo.delete)
