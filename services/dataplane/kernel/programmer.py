"""Programs peers: from leases, all of them or those that changed, to the reconciler. The one way into the kernel.

Says how far a peer is in the kernel, and why no further; and, of one peer, what is wanted beside what the kernel has
in the places of its objects now.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from enum import Enum
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.family import Family
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.conflicts import Loss
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.events import (
    REFUSED,
    RESYNC_SECONDS,
    Event,
    NodeEventKind,
    NodeJournal,
    Observations,
    describe_failures,
    describe_peers,
    describe_repair,
    describe_resync,
    resync_cause,
)
from flannelette.services.dataplane.kernel.reconciler import (
    Comparison,
    KernelPlan,
    OwnedState,
    Reconciler,
    Scope,
    scope_of,
    wins,
)
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.object_text import DeviceNames
from flannelette.services.dataplane.netlink.objects import (
    RTPROT_BOOT,
    FdbEntry,
    FouPort,
    Hook,
    IkeConnection,
    IkeKey,
    KernelObject,
    Neighbour,
    Plan,
    Route,
    WireguardDevice,
    WireguardPeer,
    XfrmPolicy,
)
from flannelette.services.dataplane.netlink.wireguard import WireguardPeerState
from flannelette.services.dataplane.peers import Peer, PeerContext, PeerDelta, PeerSet, node_objects, peers_of
from flannelette.services.runtime.telemetry.logs import get_logger


class PeerState(Enum):
    """The state of a peer, as in dataplane.proto, with the names of the fields of PeerCounts."""

    PROGRAMMED = "programmed"
    PENDING = "pending"
    FAILED = "failed"
    SHADOWED = "shadowed"
    IGNORED = "ignored"


MISSING = "objects are missing and will be added"
"""Why a peer is pending."""

SHADOWED = "a route that is not ours wins"
"""Why a peer is shadowed."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})

AS_IT_SHALL_BE = frozenset({PeerState.PROGRAMMED, PeerState.IGNORED})
"""States of a peer for which nothing is left to do."""


def state_of(
    reconciler: Reconciler, peer: Peer, names: DeviceNames, unreachable: Mapping[str, str] = _NONE
) -> tuple[PeerState, str]:
    """The state of a peer, with the reason for whatever is not programmed.

    `unreachable` is Overlay's: also a peer that has everything counts as failed where no packet gets to it.
    """
    if peer.ignored:
        return PeerState.IGNORED, peer.ignored
    for item in peer.objects if reconciler.failures else ():
        if item in reconciler.failures:
            return PeerState.FAILED, f"{text(item, names)}: {reconciler.failures[item]}"
    for route in _routes(peer.objects) if reconciler.foreign else ():
        foreign = reconciler.shadow(route)
        if foreign is not None:
            return PeerState.SHADOWED, f"{SHADOWED}: {text(foreign, names)}"
    for item in peer.objects if reconciler.faults else ():
        if item.key in reconciler.faults:
            return PeerState.FAILED, f"unreachable: {reconciler.faults[item.key]}"
    if unreachable and peer.lease.name in unreachable:
        return PeerState.FAILED, f"unreachable: {unreachable[peer.lease.name]}"
    if reconciler.programmed.issuperset(peer.objects):
        return PeerState.PROGRAMMED, peer.reason
    return PeerState.PENDING, MISSING


def failed(
    reconciler: Reconciler, peers: Iterable[Peer], names: DeviceNames, unreachable: Mapping[str, str] = _NONE
) -> dict[str, str]:
    """The leases that are not in the kernel as they shall be, with the reasons; costs nothing if all are."""
    if not (reconciler.failures or reconciler.faults or reconciler.foreign or unreachable):
        return {}
    states = ((peer.lease.name, *state_of(reconciler, peer, names, unreachable)) for peer in peers)
    return {name: reason for name, state, reason in states if state not in AS_IT_SHALL_BE}


def is_refused(peer: Peer, family: Family, failures: Collection[KernelObject]) -> bool:
    """Whether the kernel has refused our route to a peer in a family, so that no packet gets there."""
    return bool(failures) and any(r.family == family.af and r in failures for r in _routes(peer.objects))


def refused_findings(reconciler: Reconciler, peers: Iterable[Peer], names: DeviceNames) -> list[Condition]:
    """The peers whose objects the kernel has refused, those of one reason together."""
    if not reconciler.failures:
        return []
    by_reason: dict[tuple[str, bool], list[tuple[Peer, KernelObject]]] = {}
    for peer in peers:
        item = next((item for item in peer.objects if item in reconciler.failures), None)
        if item is not None:
            is_direct = isinstance(item, Route) and bool(item.gateway) and not item.onlink
            by_reason.setdefault((reconciler.failures[item], is_direct), []).append((peer, item))
    return [_refused(reason, is_direct, some, names) for (reason, is_direct), some in by_reason.items()]


def _refused(
    reason: str, is_direct: bool, refused: Sequence[tuple[Peer, KernelObject]], names: DeviceNames
) -> Condition:
    peer, item = refused[0]
    of_host_gw = is_direct and peer.lease.backend_type == HostGw.lease_type
    return found(
        "peer.objects-direct" if of_host_gw else "peer.objects",
        object=text(item, names),
        reason=reason,
        evidence=f"{command('replace', item, names)}: {reason}",
        peers=tuple((each.lease.name, each.lease.node) for each, _ in refused),
    )


def unreached(reconciler: Reconciler, peers: Iterable[Peer]) -> str:
    """Why no peer is reached although all have what they need; empty: some are, as far as is known."""
    carried = [peer for peer in peers if peer.objects] if reconciler.faults else []
    faults = [next((reconciler.faults[o.key] for o in p.objects if o.key in reconciler.faults), "") for p in carried]
    return f"no peer is reached: {faults[0]}" if faults and all(faults) else ""


def _routes(objects: Iterable[KernelObject]) -> Iterable[Route]:
    return (item for item in objects if isinstance(item, Route))


log = get_logger()


@frozen
class Edit:
    """What a change of some peers makes of the desired objects."""

    added: Set[KernelObject]
    removed: Set[KernelObject]


class ObjectRefs:
    """`desired` is every object that some peer needs. Two leases of one node share its FDB entry, desired once.

    No two desired objects have one key: of two leases that claim the same, one needs nothing (see PeerSet).
    """

    def __init__(self) -> None:
        self.desired: set[KernelObject] = set()
        self._more = Counter[KernelObject]()
        """How many more than one need an object, where any do."""

    def exchange(self, old: Iterable[KernelObject], new: Iterable[KernelObject]) -> Edit:
        """Takes away what some peers needed, and adds what they need."""
        added, removed = set[KernelObject](), set[KernelObject]()
        for item in new:
            if item in self.desired:
                self._more[item] += 1
            else:
                self.desired.add(item)
                added.add(item)
        for item in old:
            if item not in self._more:
                self.desired.remove(item)
                removed.add(item)
            elif self._more[item] > 1:
                self._more[item] -= 1
            else:
                del self._more[item]
        return Edit(added, removed)


Shape: TypeAlias = Callable[[Iterable[KernelObject]], frozenset[KernelObject]]


class PeerProgrammer:
    """Brings the kernel to what the leases need, and knows what came of it."""

    def __init__(self, node: str, kernel: Actuator, journal: NodeJournal) -> None:
        self.reconciler = Reconciler(kernel)
        self.journal = journal
        self.context: PeerContext | None = None
        """What the last call of `program` was given; None: there was none."""
        self.failed: dict[str, str] = {}
        """Leases whose objects are not in the kernel as desired, with the reasons."""
        self.node_failure = ""
        """Why what the node itself needs is not in the kernel; empty: it is."""
        self.unreachable: Mapping[str, str] = {}
        """Leases whose objects are complete but to which no packet gets, with the reasons."""
        self.peer_set = PeerSet(node)
        self.last_resync: float | None = None
        """Unix time of the last resync; None: there was none."""
        self.last_resync_cpu = 0.0
        """Seconds of CPU that the last resync took."""
        self.last_resync_changes = 0
        self._node = node
        self._refs = ObjectRefs()
        self._refused: dict[KernelObject, str] = {}
        """The failures that were logged last."""
        self._own_losses: tuple[Loss, ...] = ()
        """The losses that were logged last."""
        self._is_torn_down = False

    @property
    def peers(self) -> Mapping[str, Peer]:
        """The peers by the names of their leases."""
        return self.peer_set.peers

    async def program(
        self,
        context: PeerContext,
        leases: Mapping[str, Lease],
        changed: Collection[str] | None = None,
        observed: Observations | None = None,
        since: float | None = None,
    ) -> None:
        """Brings the kernel to what the leases need in the context. Raises Unavailable: call again with everything.

        `changed` restricts it to the leases of these names, as the others and the context are those of the last call:
        the kernel is not read. None, or another context: everything is compared with a dump. `observed` explains
        repairs; `since` is when the first change was received, on the monotonic clock.
        """
        started, cpu, last = time.monotonic(), time.thread_time(), self.context
        observed = observed or Observations()
        is_whole = changed is None or context != last
        delta = self.peer_set.update(context, leases, None if is_whole else changed)
        _tell_rejections(delta)
        old, new = _objects(delta.old, last if is_whole else None), _objects(delta.new, context if is_whole else None)
        self.context = context
        edit = self._refs.exchange(old, new)
        scope = scope_of(context, self.peers.values())
        if is_whole:
            done = await self._reconcile_all(scope)
            self.last_resync, self.last_resync_changes = time.time(), len(done)
            self.last_resync_cpu = time.thread_time() - cpu
            RESYNC_SECONDS.observe(time.monotonic() - started)
        else:
            within, desired = set(old), self._refs.desired
            await self.reconciler.reconcile({*new, *(item for item in within if item in desired)}, scope, within)
        in_doubt = self.peers if is_whole else {*(changed or ()), *delta.new, *self.failed}
        peers = (peer for name in in_doubt if (peer := self.peers.get(name)) is not None)
        self.failed = failed(self.reconciler, peers, self.names(), self.unreachable)
        self.node_failure = self._node_failure(context)
        events = describe_peers(delta.old, delta.new, self.journal.cursor, _since(since or started))
        if is_whole:
            has_news = bool(events)
            events += self._repairs(done, edit, last, context, observed, started, has_news=has_news)
        for event in events:
            self.journal.note(event)
        self._tell_refusals()
        self._tell_own_losses()

    async def _reconcile_all(self, scope: Scope) -> KernelPlan:
        """What was carried out, without what failed."""
        todo = await self.reconciler.reconcile(self._refs.desired, scope)
        failures = self.reconciler.failures.keys()
        return Plan(todo.put - failures, todo.delete - failures) if failures else todo

    def _repairs(
        self,
        done: KernelPlan,
        edit: Edit,
        last: PeerContext | None,
        context: PeerContext,
        observed: Observations,
        started: float,
        *,
        has_news: bool,
    ) -> list[Event]:
        """The events of a full comparison: what it repaired, and what else it did."""
        is_drift = last is not None and not self._is_torn_down
        repaired = _repaired(done, edit, last, context) if last is not None and is_drift else []
        self._is_torn_down = False
        events = []
        if repaired:
            peers = self.peers.values()
            events.append(describe_repair(repaired, observed, peers, self.names(), _since(observed.since or started)))
        is_decided = observed.is_requested or (context != last and not (repaired and len(done) == len(repaired)))
        if is_decided or len(done) > len(repaired):
            log.info("kernel reconciled", peers=len(self.peers), put=len(done.put), deleted=len(done.delete))
        if is_decided or (done and not (events or has_news)):
            cause = resync_cause(last, context, observed)
            events.append(describe_resync(len(done.put), len(done.delete), len(self.peers), cause, _since(started)))
        return events

    def unused_overlays(self) -> Set[str]:
        """The names of the earlier overlays that no peer needs; none while the kernel refuses something."""
        earlier = self.context.earlier if self.context and not self.reconciler.failures else ()
        return {o.name for o in earlier}.difference(peer.via for peer in self.peers.values()) if earlier else set()

    def note_unreachable(self, reasons: Mapping[str, str]) -> None:
        """The leases to which no packet gets, as a check of the host has found; all others are reached."""
        if reasons != self.unreachable:
            self.unreachable = reasons
            self.failed = failed(self.reconciler, self.peers.values(), self.names(), reasons)

    def forget(self) -> None:
        """An operator has removed what was programmed: programming it again is no repair."""
        self.reconciler.forget()
        self._is_torn_down = True

    def _node_failure(self, context: PeerContext) -> str:
        failures = self.reconciler.failures
        items = node_objects(context) if failures else frozenset[KernelObject]()
        refused = "; ".join(f"{text(item, self.names())}: {failures[item]}" for item in items if item in failures)
        return refused or unreached(self.reconciler, self.peers.values())

    def _tell_refusals(self) -> None:
        """Once, not at each attempt; ListPeers has all of them at any time."""
        failures = self.reconciler.failures
        if failures.keys() - self._refused.keys():
            item, reason = next(pair for pair in failures.items() if pair[0] not in self._refused)
            first = f"{text(item, self.names())}: {reason}"
            log.warning("objects that leases need cannot be made; retrying", objects=len(failures), first=first)
            self.journal.note(describe_failures(self.failed, self.peers, len(failures), first))
        self._refused = dict(failures)

    def _tell_own_losses(self) -> None:
        """Tells that other nodes carry another lease instead of ours; this node's kernel is as it should be."""
        if self.peer_set.own_losses == self._own_losses:
            return
        self._own_losses = self.peer_set.own_losses
        reason = "; ".join(loss.reason for loss in self._own_losses)
        if reason:
            log.error("a lease of another node has the older claim, so peers send no packets here", reason=reason)
            self.journal.note(
                Event(NodeEventKind.OWN_LEASE, "own lease conflicts with an older claim of another node", reason)
            )
        else:
            log.info("no lease has an older claim than the own lease any more")
            self.journal.note(
                Event(NodeEventKind.OWN_LEASE, "own lease no longer conflicts with an older claim", "lease change")
            )

    async def plan(
        self, context: PeerContext, leases: Mapping[str, Lease] | None, shape: Shape = frozenset
    ) -> KernelPlan:
        """What `program` would do with everything; with a `shape`, if the peers needed that. Changes nothing.

        None: nothing is desired, for a teardown. Objects on our devices are left out then: they go with the devices.
        """
        peers = peers_of((leases or {}).values(), self._node, context, self.peers, self.peer_set.path_mtus).values()
        scope = scope_of(context, peers)
        if leases is None:
            todo = (await self.reconciler.compare(frozenset(), scope)).todo
            return Plan(frozenset(), frozenset(o for o in todo.delete if o.ifindex not in scope.rules.devices))
        desired = shape([*chain.from_iterable(peer.objects for peer in peers), *node_objects(context)])
        return (await self.reconciler.compare(desired, scope)).todo

    async def inspect(self) -> tuple[Comparison, Set[KernelObject]]:
        """The objects in the kernel now, by owner; and the desired ones."""
        assert self.context is not None  # noqa: S101 - something was programmed before
        comparison = await self.reconciler.compare(self._refs.desired, scope_of(self.context, self.peers.values()))
        return comparison, self._refs.desired

    async def observe(self) -> None:
        """Notes which foreign routes there are, and changes nothing. Raises Unavailable."""
        if self.context is not None:
            await self.reconciler.observe(self._refs.desired, scope_of(self.context, self.peers.values()))

    def names(self) -> dict[int, str]:
        """Interface names by index, for texts."""
        return self.context.names() if self.context else {}


def _tell_rejections(delta: PeerDelta) -> None:
    """Counts and logs what is rejected now and was not."""
    rejected = delta.rejected
    for peer in rejected:
        for each in peer.refusals:
            REFUSED.labels(each.rule).inc()
    if rejected:
        one = rejected[0]
        what = "leases are refused" if len(rejected) > 1 else "a lease is refused"
        log.warning(what, leases=len(rejected), lease=one.lease.name, node=one.lease.node, reason=one.reason)


def _objects(peers: Mapping[str, Peer], context: PeerContext | None) -> list[KernelObject]:
    """What these peers need, and with a context what the node needs."""
    found = list(chain.from_iterable(peer.objects for peer in peers.values()))
    return [*found, *node_objects(context)] if context is not None else found


def _repaired(done: KernelPlan, edit: Edit, last: PeerContext, context: PeerContext) -> list[KernelObject]:
    """The changes that no decision of ours explains."""
    if context.differs_by_devices_only(last):
        return [*done.put, *done.delete]  # another program deleted the device with everything on it
    strangers = () if last.adds_only else done.delete
    return [o for o in done.put if o not in edit.added] + [o for o in strangers if o not in edit.removed]


def _since(moment: float) -> float:
    return time.monotonic() - moment


_FLANNELS: Final = "as a flanneld makes it, so it goes once ours is there"


@frozen
class ObjectCheck:
    """A place in the kernel: what shall be in it, what is, and why that is not the same."""

    wanted: KernelObject | None
    """What shall be in the place; None: nothing of ours."""
    actual: KernelObject | None
    """What is in the place; None: nothing."""
    remark: str = ""
    is_lost: bool = False
    """A route of another program takes precedence over ours."""

    @property
    def is_well(self) -> bool:
        """Whether what is wanted is there."""
        return self.wanted is None or self.wanted == self.actual


@frozen
class KernelView:
    """The kernel, at one moment."""

    divided: OwnedState
    wanted: Container[KernelObject]
    """Objects that all peers together need."""
    failures: Mapping[KernelObject, str]
    """What the kernel has refused, with its words."""
    states: Mapping[Hashable, object] = field(default_factory=dict)
    """See Contents."""

    def places(self, peer: Peer) -> tuple[ObjectCheck, ...]:
        """Compares everything that the peer needs, then whatever else leads to it, with what the kernel has in its
        place.
        """
        concerning = sorted(self._concerning(peer.lease, peer.objects))
        by_key = {item.key: item for item in concerning}
        wanted = [self._place(item, by_key.get(item.key)) for item in sorted(peer.objects)]
        taken = {item.key for item in peer.objects}
        beside = [self._beside(item, peer.objects) for item in concerning if item.key not in taken]
        return (*wanted, *beside)

    def _concerning(self, lease: Lease, objects: Collection[KernelObject]) -> Iterator[KernelObject]:
        """All in the kernel that has to do with the lease, or is in a place that it needs."""
        keys = {item.key for item in objects}
        subnets = {(s.cidr.network_address.packed, s.cidr.prefixlen) for s in lease.subnets}
        gateways = {address for address, _ in subnets}
        texts = {str(s.cidr) for s in lease.subnets}
        public_keys = {item.public_key for item in objects if isinstance(item, WireguardPeer)}
        ends = {s.public_address.packed for s in lease.subnets if s.public_address}
        for item in (*self.divided.ours, *self.divided.foreign):
            match item:
                case Route():
                    is_its_own = (item.dst, item.length) in subnets
                case Neighbour():
                    is_its_own = item.dst in gateways
                case WireguardDevice() | FouPort():
                    is_its_own = False
                case WireguardPeer():
                    is_its_own = item.public_key in public_keys or not subnets.isdisjoint(item.allowed_ips)
                case XfrmPolicy():
                    prefixes = {(item.src, item.src_length), (item.dst, item.dst_length)}
                    is_its_own = not subnets.isdisjoint(prefixes)
                case IkeConnection():
                    is_its_own = item.peer_subnet in texts
                case Hook() | IkeKey():
                    is_its_own = False  # other than by its slot
                case FdbEntry():
                    is_its_own = item.dst in ends and item not in self.wanted
            if is_its_own or item.key in keys:
                yield item

    def _place(self, wanted: KernelObject, actual: KernelObject | None) -> ObjectCheck:
        if wanted == actual:
            return ObjectCheck(wanted, actual, self._state(wanted))
        if actual in self.divided.foreign:
            return ObjectCheck(wanted, actual, "not ours, so it stays, and ours cannot be added", is_lost=True)
        refused = self.failures.get(wanted)
        return ObjectCheck(wanted, actual, f"the kernel refuses ours: {refused}" if refused else self._state(wanted))

    def _state(self, item: KernelObject) -> str:
        return str(self.states.get(item.key, ""))

    def _beside(self, actual: KernelObject, objects: Collection[KernelObject]) -> ObjectCheck:
        if actual not in self.divided.foreign:
            is_flannels = isinstance(actual, Route) and actual.protocol == RTPROT_BOOT
            return ObjectCheck(None, actual, _FLANNELS if is_flannels else "ours, and no longer needed")
        assert isinstance(actual, Route)  # noqa: S101 - only routes are anybody else's
        rivals = (item for item in objects if isinstance(item, Route) and item.destination == actual.destination)
        is_winner = any(wins(actual, rival) for rival in rivals)
        remark = "not ours, and wins over ours" if is_winner else "not ours, and loses to ours"
        return ObjectCheck(None, actual, remark, is_lost=is_winner)


async def inspect_peers(
    programmer: PeerProgrammer, peers: Iterable[Peer]
) -> list[tuple[Peer, tuple[ObjectCheck, ...]]]:
    """The peers, each with its places, from one dump of the kernel. Changes nothing. Raises Unavailable.

    Call it between two turns, so that the kernel is not in the middle of a change of ours.
    """
    now, wanted = await programmer.inspect()
    look = KernelView(now.state, wanted, programmer.reconciler.failures, now.found.states)
    return [(peer, look.places(peer)) for peer in peers]


async def peer_traffic(programmer: PeerProgrammer, peers: Iterable[Peer]) -> dict[str, tuple[int, int]]:
    """Bytes received and sent, by lease name, of the peers for which the kernel counts. Raises Unavailable.

    Call it as `inspect_peers`.
    """
    counted = {
        peer.lease.name: keys
        for peer in peers
        if (keys := [item.key for item in peer.objects if isinstance(item, WireguardPeer)])
    }
    if not counted:
        return {}
    states = (await programmer.inspect())[0].found.states
    traffic = {}
    for name, keys in counted.items():
        found = [state for key in keys if isinstance(state := states.get(key), WireguardPeerState)]
        if found:
            traffic[name] = sum(state.received for state in found), sum(state.sent for state in found)
    return traffic


def state_in(peer: Peer, places: Sequence[ObjectCheck], names: DeviceNames) -> tuple[PeerState, str]:
    """Derives the state of a peer from a dump, not from memory, as `state_of` does for one that is carried and not
    refused.
    """
    for place in places:
        if place.is_lost and place.actual is not None:
            return PeerState.SHADOWED, f"{SHADOWED}: {text(place.actual, names)}"
    if all(place.is_well for place in places):
        return PeerState.PROGRAMMED, peer.reason
    return PeerState.PENDING, MISSING
