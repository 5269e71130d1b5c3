"""The peers and what they need in the kernel: from leases, all or some of them, to the reconciler."""

import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Set
from functools import partial
from itertools import chain
from typing import TypeAlias

from services.core.conflicts import Loss
from services.core.lease import Lease
from services.core.plan import Plan
from services.dataplane import metrics
from services.dataplane.blackhole import blackhole_routes
from services.dataplane.causes import Heard
from services.dataplane.journal import Event, Journal, Kind
from services.dataplane.netlink.notation import text
from services.dataplane.netlink.objects import KernelObject
from services.dataplane.news import failure_news, peer_news, repair_news, resync_cause, resync_news
from services.dataplane.ownership import Claim
from services.dataplane.peer_state import failed
from services.dataplane.peers import Peer, direct_routes
from services.dataplane.reconciler import KernelPlan, Reconciler, Scope
from services.dataplane.roster import Roster, peers_of
from services.dataplane.situation import Situation
from services.dataplane.stock import Stock
from services.runtime.logs import get_logger

log = get_logger()

Shape: TypeAlias = Callable[[Iterable[KernelObject]], frozenset[KernelObject]]


class Overlay:
    """What is wanted, in which situation, and what the comparisons with the kernel have shown."""

    def __init__(self, node: str, reconciler: Reconciler, journal: Journal) -> None:
        self.reconciler = reconciler
        self.journal = journal
        self.situation: Situation | None = None
        self.failed: dict[str, str] = {}
        """Leases that are not in the kernel as they shall be, with the reasons."""
        self.unreachable: Mapping[str, str] = {}
        """Leases that have all that they need of ours, and to which no packet gets nevertheless, with the reasons."""
        self.roster = Roster(node)
        self.last_resync: float | None = None
        """Unix time."""
        self.last_resync_cpu = 0.0
        """Seconds."""
        self.last_resync_changes = 0
        self._node = node
        self._stock = Stock()
        self._refused: dict[KernelObject, str] = {}
        """What was logged last."""
        self._own_losses: tuple[Loss, ...] = ()
        """What was logged last."""
        self._is_torn_down = False

    @property
    def peers(self) -> Mapping[str, Peer]:
        """By lease name."""
        return self.roster.peers

    async def program_all(self, situation: Situation, leases: Iterable[Lease], heard: Heard | None = None) -> None:
        """Compares everything and brings it into line. Raises Unavailable; then it must be called again.

        What was `heard` of the kernel explains what had to be repaired.
        """
        started, cpu = time.monotonic(), time.thread_time()
        heard = heard or Heard()
        last, before, peers, self.situation = self.situation, self._stock, self.peers, situation
        if self.roster.take_all(situation, leases) or situation != last:
            self._stock = Stock(_needs(situation, self.peers.values()))
        scope = _scope(situation, self.peers.values())
        todo = await self.reconciler.resync(self._stock.wanted, scope, is_suspect=heard.signs.total() > 0)
        failures = self.reconciler.failures
        done = Plan(todo.put - failures.keys(), todo.delete - failures.keys())
        self.last_resync, self.last_resync_changes = time.time(), len(done)
        self.last_resync_cpu = time.thread_time() - cpu
        metrics.RESYNC_SECONDS.observe(time.monotonic() - started)
        self.failed = failed(self.reconciler, self.peers.values(), self.names(), self.unreachable)
        repaired = (
            _repaired(done, last, situation, before.wanted) if last is not None and not self._is_torn_down else []
        )
        self._is_torn_down = False
        news = [] if peers is self.peers else peer_news(peers, self.peers, self.journal.cursor, _since(started))
        news += repair_news(repaired, heard, self.peers.values(), self.names(), _since(heard.since or started))
        is_decided = heard.is_asked or (situation != last and not (repaired and len(done) == len(repaired)))
        if is_decided or len(done) > len(repaired):
            log.info("kernel brought into line", peers=len(self.peers), put=len(done.put), deleted=len(done.delete))
        if is_decided or (done and not news):
            cause = resync_cause(last, situation, heard)
            news.append(resync_news(len(done.put), len(done.delete), len(self.peers), cause, _since(started)))
        for event in news:
            self.journal.note(event)
        self._tell_refusals()
        self._tell_own_losses()

    def note_unreachable(self, reasons: Mapping[str, str]) -> None:
        """What a look at the kernel has shown of these leases; all others are reached."""
        if reasons != self.unreachable:
            self.unreachable = reasons
            self.failed = failed(self.reconciler, self.peers.values(), self.names(), reasons)

    def forget(self) -> None:
        """What was programmed is gone by our own hand: to make it again is no repair."""
        self.reconciler.forget()
        self._is_torn_down = True

    async def program_some(
        self, names: Collection[str], leases: Mapping[str, Lease], since: float | None = None
    ) -> None:
        """The same for the leases of these names, or for all if two claim the same, or did.

        `since` is when the first of them was heard of, on the monotonic clock. Raises Unavailable; then
        `program_all` must be called.
        """
        situation = self.situation
        assert situation is not None  # noqa: S101 - everything was programmed once before
        started = time.monotonic()
        turnover = self.roster.take_some(names, leases)
        if turnover is None:
            await self.program_all(situation, leases.values())
            return
        old, new = turnover.old, turnover.new
        before = {item for peer in old.values() for item in peer.objects}
        after = {item for peer in new.values() for item in peer.objects}
        self._stock.remove(chain.from_iterable(peer.objects for peer in old.values()))
        self._stock.add(chain.from_iterable(peer.objects for peer in new.values()))
        await self.reconciler.update(before, after | {item for item in before if item in self._stock.wanted})
        in_doubt = (peer for name in {*names, *self.failed} if (peer := self.peers.get(name)) is not None)
        self.failed = failed(self.reconciler, in_doubt, self.names(), self.unreachable)
        for event in peer_news(old, new, self.journal.cursor, _since(since or started)):
            self.journal.note(event)
        self._tell_refusals()

    def _tell_refusals(self) -> None:
        """Once, not at each attempt; ListPeers has all of them at any time."""
        failures = self.reconciler.failures
        if failures.keys() - self._refused.keys():
            item, reason = next(pair for pair in failures.items() if pair[0] not in self._refused)
            first = f"{text(item, self.names())}: {reason}"
            log.warning("the kernel refuses what leases need; trying again", objects=len(failures), first=first)
            self.journal.note(failure_news(self.failed, self.peers, len(failures), first))
        self._refused = dict(failures)

    def _tell_own_losses(self) -> None:
        """Tells that other nodes carry another lease instead of ours; this node's kernel is as it should be."""
        if self.roster.own_losses == self._own_losses:
            return
        self._own_losses = self.roster.own_losses
        reason = "; ".join(loss.reason for loss in self._own_losses)
        if reason:
            log.error("the own lease loses to that of another node, so others send no packets here", reason=reason)
            self.journal.note(Event(Kind.OWN_LEASE, "own lease loses to that of another node", reason))
        else:
            log.info("the own lease loses to no other any more")
            self.journal.note(Event(Kind.OWN_LEASE, "own lease loses to no other any more", "lease change"))

    async def plan(self, situation: Situation, leases: Iterable[Lease], shape: Shape = frozenset) -> KernelPlan:
        """What `program_all` would do; with a `shape`, if the peers needed that."""
        peers = peers_of(leases, self._node, situation).values()
        wanted = shape(chain.from_iterable(_needs(situation, peers)))
        return (await self.reconciler.compare(wanted, _scope(situation, peers))).todo

    async def look(self) -> tuple[Claim, Set[KernelObject]]:
        """What the kernel has now, divided; and what is wanted."""
        assert self.situation is not None  # noqa: S101 - as above
        wanted = self._stock.wanted
        found = await self.reconciler.compare(wanted, _scope(self.situation, self.peers.values()))
        return found.claim, wanted

    async def look_beside(self) -> None:
        """Notes what routes of others there are, and changes nothing. Raises Unavailable."""
        if self.situation is not None:
            scope = _scope(self.situation, self.peers.values())
            await self.reconciler.look(self._stock.wanted, scope)

    async def everything(self) -> KernelPlan:
        """What removes everything of ours but the devices, with which goes what is on them."""
        assert self.situation is not None  # noqa: S101 - as above
        scope = self.situation.scope()
        todo = (await self.reconciler.compare(frozenset(), scope)).todo
        return Plan(frozenset(), frozenset(o for o in todo.delete if o.ifindex not in scope.domain.devices))

    def names(self) -> dict[int, str]:
        """Interface names by index, for texts."""
        return self.situation.links.names() if self.situation else {}


def _needs(situation: Situation, peers: Iterable[Peer]) -> list[Collection[KernelObject]]:
    """What each peer needs, and what the node does."""
    return [*(peer.objects for peer in peers), tuple(blackhole_routes(situation))]


def _scope(situation: Situation, peers: Iterable[Peer]) -> Scope:
    return situation.scope(partial(direct_routes, peers, situation.links.underlay.index))


def _repaired(
    todo: KernelPlan, last: Situation, now: Situation, wanted: Container[KernelObject]
) -> list[KernelObject]:
    """The changes that no decision of ours explains; `wanted` is what was, in the situation of then."""
    if last.links.devices != now.links.devices and now.differs_by_devices_only(last):
        return [*todo.put, *todo.delete]  # somebody took the device away with everything on it
    strangers = () if last.adds_only else todo.delete
    return [o for o in todo.put if o in wanted] + [o for o in strangers if o not in wanted]


def _since(moment: float) -> float:
    return time.monotonic() - moment
