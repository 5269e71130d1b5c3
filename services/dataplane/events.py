"""Records of what the dataplane decided and why: metrics, kinds of events, the journal, and descriptions.

* Metrics are what Prometheus sees of the dataplane.
* The journal has events by kind, with the causes of repairs (what other programs do to the kernel), which it counts.
* Descriptions are pure: what there is to tell of a turn's work on the peers, from what was and what is to events.

Takes values and writes text; never touches the kernel and knows no node configuration.
"""

import collections
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum, auto
from itertools import groupby, islice
from typing import Final, TypeAlias

from flannelette.services.core.conditions import BROKEN, WARNING, Condition, found
from flannelette.services.core.formats.text import count
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.conflicts import KINDS, Loss
from flannelette.services.core.leases.lease import BackendData, Lease, Subnet, VxlanData
from flannelette.services.dataplane.links.interfaces import LinkChange
from flannelette.services.dataplane.netlink.kinds import kind_of, text
from flannelette.services.dataplane.netlink.object_text import DeviceNames
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.peers import NO_ADDRESS, WHOLE, Peer, PeerContext
from flannelette.services.runtime import events
from flannelette.services.runtime.events import MOST_NAMED, REMEMBERED, RecordedEvent, Subject
from flannelette.services.runtime.events import Event as Event
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger
from flannelette.services.runtime.telemetry.metrics import (
    Collector,
    Counter,
    Gauge,
    GaugeMetricFamily,
    Histogram,
)

REPAIRS: Final = Counter(
    "flannelette_kernel_repairs",
    "Repairs of kernel objects and devices that another program changed",
    ["cause"],
)
REFUSED: Final = Counter(
    "flannelette_leases_refused",
    "Leases, or subnets of leases, that the dataplane refused",
    ["rule"],
)
RESYNC_SECONDS: Final = Histogram(
    "flannelette_kernel_resync_seconds",
    "Time of a comparison of the whole kernel state, with its repair",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
PROBE_SECONDS: Final = Histogram(
    "flannelette_probe_seconds",
    "Round-trip time of small probes to peers, by what carries them (overlay, underlay)",
    ["layer"],
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)
PROBES_LOST: Final = Counter(
    "flannelette_probes_lost",
    "Probes to peers that were not answered within a second",
    ["layer"],
)
PENDING: Final = Gauge(
    "flannelette_network_change_pending",
    "1 while the node keeps a subnet for which the configuration has no room",
)


class NumberCollector(Collector):
    """A gauge with these labels, counted at every scrape and not at every change.

    `count` is called in another thread than the event loop's; its keys have a value for each label.
    """

    def __init__(
        self, name: str, text: str, labels: Sequence[str], count: Callable[[], Mapping[tuple[str, ...], int]]
    ) -> None:
        self._name, self._text, self._labels, self._count = name, text, labels, count

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        found = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for values, number in self._count().items():
            found.add_metric(values, number)
        yield found


class Cause(Enum):
    """Why objects of ours were not as desired. The value is the label of the metric; the gravest is first."""

    LINK_DELETED = "link deleted"
    LINK_DOWN = "link down"
    ADDRESS_REMOVED = "address removed"
    ROUTE_DELETED = "route deleted"
    ROUTE_CHANGED = "route changed"
    NEIGHBOUR_DELETED = "neighbour deleted"
    NEIGHBOUR_CHANGED = "neighbour changed"
    FDB_ENTRY_DELETED = "fdb entry deleted"
    FDB_ENTRY_CHANGED = "fdb entry changed"
    POLICY_DELETED = "policy deleted"
    POLICY_CHANGED = "policy changed"
    LINK_UP = "link up"
    MTU_CHANGED = "mtu changed"
    ADDRESS_ADDED = "address added"
    LINK_CHANGED = "link changed"
    NOTIFICATIONS_LOST = "notifications lost"
    AUDIT = "audit"
    """No notification of the kernel tells it: a comparison found it."""


Observation: TypeAlias = tuple[Cause, str]
"""A cause, and the name of its interface; empty: an interface that is not known."""

_OF_OBJECTS: Final = frozenset(
    (
        Cause.ROUTE_DELETED,
        Cause.ROUTE_CHANGED,
        Cause.NEIGHBOUR_DELETED,
        Cause.NEIGHBOUR_CHANGED,
        Cause.FDB_ENTRY_DELETED,
        Cause.FDB_ENTRY_CHANGED,
        Cause.POLICY_DELETED,
        Cause.POLICY_CHANGED,
    )
)
"""The causes that are worth a count."""
_ORDER: Final = {cause: number for number, cause in enumerate(Cause)} | {Cause.NOTIFICATIONS_LOST: -1}
"""The gravest first; what got lost may be anything."""


@frozen
class Observations:
    """What others did to the kernel since the last full comparison. Small, however many notifications there were."""

    counts: Mapping[Observation, int] = field(default_factory=dict)
    since: float | None = None
    """When the first of it was observed, on the monotonic clock."""
    is_requested: bool = False
    """An operator asked for a full comparison."""

    def __add__(self, other: "Observations") -> "Observations":
        moments = [since for since in (self.since, other.since) if since is not None]
        counts = collections.Counter(self.counts) + collections.Counter(other.counts)
        return Observations(counts, min(moments, default=None), self.is_requested or other.is_requested)

    @property
    def cause(self) -> Cause:
        """The gravest: why objects or devices were not as desired."""
        return self._gravest[0]

    @property
    def words(self) -> str:
        """`route deleted on flannel.1, 2 times`: the gravest. Empty: nothing was observed."""
        if not self.counts:
            return ""
        cause, name = self._gravest
        number = self.counts[cause, name]
        times = f", {number:,} times" if number > 1 and cause in _OF_OBJECTS else ""
        return f"{cause.value}{' on ' if name else ''}{name}{times}"

    @property
    def _gravest(self) -> Observation:
        return min(self.counts, key=lambda each: (_ORDER[each[0]], each[1]), default=(Cause.AUDIT, ""))


log = get_logger()


class NodeEventKind(Enum):
    """The kind of an event, as EventKind in dataplane.proto, which says what each means."""

    SERVICE_STARTED = auto()
    READINESS = auto()
    LEASE_SERVICE = auto()
    NETWORK = auto()
    UNDERLAY = auto()
    OWN_LEASE = auto()
    DEVICE = auto()
    PEER_ADDED = auto()
    PEER_CHANGED = auto()
    PEER_REMOVED = auto()
    PEERS_CHANGED = auto()
    RESYNC = auto()
    REPAIR = auto()
    FAILURE = auto()
    TEARDOWN = auto()
    HAND_OVER = auto()
    COMMAND = auto()
    PEER_ANSWERS = auto()
    CAPTURE = auto()


class NodeJournal(events.Journal):
    """The journal, which counts and logs repairs: the subjects of its events are leases with their nodes."""

    def __init__(
        self,
        size: int = REMEMBERED,
        clock: Callable[[], float] = time.time,
        earlier: Sequence[RecordedEvent] = (),
    ) -> None:
        super().__init__(size, clock, earlier)
        self.repairs: collections.Counter[Cause] = collections.Counter()
        """Objects that were repaired, since the start."""
        self._may_log = LogLimiter()

    def note(self, event: Event) -> None:
        """Records an event, and counts and logs it if it is a repair."""
        super().note(event)
        if isinstance(event.repair, Cause):
            self.repairs[event.repair] += event.objects
            REPAIRS.labels(event.repair.value).inc(event.objects)
            self._log(event, event.repair)

    def _log(self, event: Event, cause: Cause) -> None:
        if self._may_log(cause):
            log.warning(
                "another program changed our kernel objects; repaired", repaired=event.what, cause=event.cause
            )


_MOST_OBJECTS: Final = 3
_OWN_CLAIMS: Final = frozenset({"own-subnet", "own-address", "own-mac"})
"""Rules of `validation` by which a lease claims what this node has."""
_AWAY: Final = " Nobody answers at its address now."
_MOST_FINDINGS: Final = 10
"""Largest number of findings about refused leases; ListPeers has all."""


def describe_peers(old: Mapping[str, Peer], new: Mapping[str, Peer], cursor: str, seconds: float) -> list[Event]:
    """Describes which of some peers have come, changed and gone: an event each, or one for all if they are many.

    What changes nothing here, a renewal, is no news.
    """
    gone = [peer for name, peer in old.items() if name not in new]
    changed = [
        (old[name], peer) for name, peer in new.items() if name in old and _content(old[name]) != _content(peer)
    ]
    come = [peer for name, peer in new.items() if name not in old]
    cause = f"lease change, cursor {cursor}" if cursor else "lease change"
    count = len(gone) + len(changed) + len(come)
    if count > MOST_NAMED:
        numbers = {"added": len(come), "changed": len(changed), "removed": len(gone)}
        told = ", ".join(f"{number:,} {word}" for word, number in numbers.items() if number)
        first = islice((*come, *(now for _, now in changed), *gone), MOST_NAMED)
        named = tuple(map(_name, first))
        words = ", ".join(peer.of or peer.name for peer in named)
        return [Event(NodeEventKind.PEERS_CHANGED, f"peers {told}: {words}, ...", cause, seconds, named, count)]
    events = [
        _of(NodeEventKind.PEER_REMOVED, peer, f"peer removed: {_title(peer.lease)}", cause, seconds) for peer in gone
    ]
    for then, now in changed:
        what = f"peer changed: {_label(now.lease)}, {'; '.join(_differences(then, now))}"
        events.append(_of(NodeEventKind.PEER_CHANGED, now, what, cause, seconds))
    for peer in come:
        refused = f"; not carried: {peer.reason}" if peer.reason else ""
        events.append(
            _of(NodeEventKind.PEER_ADDED, peer, f"peer added: {_title(peer.lease)}{refused}", cause, seconds)
        )
    return events


def describe_repair(
    repaired: Collection[KernelObject],
    observed: Observations,
    peers: Iterable[Peer],
    names: DeviceNames,
    seconds: float,
) -> Event:
    """Objects that were not as desired although no decision of ours explains it."""
    what = f"repaired: {_summary(repaired, names)}"
    owners, count = _owners(repaired, peers)
    return Event(NodeEventKind.REPAIR, what, _cause(observed), seconds, owners, count, len(repaired), observed.cause)


def describe_resync(put: int, deleted: int, peers: int, cause: str, seconds: float) -> Event:
    """A comparison of everything, but for what it repaired."""
    done = f"{put:,} put, {deleted:,} deleted" if put or deleted else "nothing to do"
    what = f"compared with the kernel: {count(peers, 'peer')}, {done}"
    return Event(NodeEventKind.RESYNC, what, cause, seconds, objects=put + deleted)


def resync_cause(last: PeerContext | None, now: PeerContext, observed: Observations) -> str:
    """Why everything was compared."""
    if now.adds_only and last is None:
        return "cached leases"
    if last is None or (last.adds_only and not now.adds_only):
        return "the first complete snapshot of leases"
    parts = {
        "network configuration": (last.network, now.network),
        "underlay": (last.links.underlay, now.links.underlay),
        "devices": (last.links.devices, now.links.devices),
        "routes of the underlay": (last.links.on_link, now.links.on_link),
        "own subnet": (last.own_subnets, now.own_subnets),
    }
    new = [name for name, (then, this) in parts.items() if then != this]
    asked = "requested by an operator" if observed.is_requested else ""
    return "; ".join(filter(None, [asked, f"new {', '.join(new)}" if new else "", observed.words])) or "audit"


def describe_device(name: str, steps: Iterable[LinkChange], observed: Observations | None, seconds: float) -> Event:
    """What was done to a device; `observed` explains it where no decision of ours does."""
    commands = "; ".join(step.command for step in steps)
    if observed is None:
        cause = "network configuration, underlay or own lease"
        return Event(NodeEventKind.DEVICE, f"{name}: {commands}", cause, seconds, objects=1)
    what, cause = f"repaired: {commands}", _cause(observed)
    return Event(NodeEventKind.REPAIR, what, cause, seconds, objects=1, repair=observed.cause)


def describe_failures(failed: Mapping[str, str], peers: Mapping[str, Peer], objects: int, first: str) -> Event:
    """What the kernel refuses."""
    named = tuple(_name(peers[name]) for name in islice(failed, MOST_NAMED) if name in peers)
    what = f"{count(objects, 'object')} not made, retried later: {first}"
    return Event(NodeEventKind.FAILURE, what, "refused", subjects=named, subject_count=len(failed), objects=objects)


def claim_findings(
    own_losses: Iterable[Loss], peers: Iterable[Peer], is_away: Callable[[str], bool] = lambda lease: False
) -> list[Condition]:
    """Findings about leases that are not carried, and why: the own one on other nodes, and those of others here.

    `is_away`: nobody answers at the addresses of a lease, so that no packet is lost if it is not carried.
    """
    own = [
        found(
            "node.own-claim",
            winner=loss.winner.node or loss.winner.name,
            lease=loss.lease.name,
            reason=loss.reason,
            evidence=f"leases: {_title(loss.winner)}",
        )
        for loss in own_losses
    ]
    return own + list(islice(_of_others(peers, is_away), _MOST_FINDINGS))


def _cause(observed: Observations) -> str:
    return observed.words or "found by a full comparison"


def _of(kind: NodeEventKind, peer: Peer, what: str, cause: str, seconds: float) -> Event:
    return Event(kind, what, cause, seconds, (_name(peer),), 1)


def _name(peer: Peer) -> Subject:
    return Subject(peer.lease.name, peer.lease.node)


def _label(lease: Lease) -> str:
    return lease.node or lease.name


def _title(lease: Lease) -> str:
    return f"{_label(lease)}, {', '.join(map(_where, lease.subnets))}"


def _where(subnet: Subnet) -> str:
    return f"{subnet.cidr} at {subnet.public_address}" if subnet.public_address else str(subnet.cidr)


def _content(peer: Peer) -> tuple[object, ...]:
    return peer.lease.node, peer.lease.subnets, peer.lease.backend_type, peer.refusals


def _differences(then: Peer, now: Peer) -> list[str]:
    rows = {
        "node": (then.lease.node, now.lease.node),
        "backend": (then.lease.backend_type, now.lease.backend_type),
        "subnet": (_list(s.cidr for s in then.lease.subnets), _list(s.cidr for s in now.lease.subnets)),
        "address": (
            _list(s.public_address for s in then.lease.subnets if s.public_address),
            _list(s.public_address for s in now.lease.subnets if s.public_address),
        ),
        "data": (
            _list(_data(s.data) for s in then.lease.subnets),
            _list(_data(s.data) for s in now.lease.subnets),
        ),
    }
    told = [f"{label} {a or '-'} -> {b or '-'}" for label, (a, b) in rows.items() if a != b]
    if now.refusals != then.refusals:
        told.append(f"not carried: {now.reason}" if now.refusals else "carried now")
    return told


def _list(values: Iterable[object]) -> str:
    return ",".join(str(value) for value in values if value != "")


def _data(data: BackendData | None) -> str:
    return f"vni {data.vni} {data.mac}" if isinstance(data, VxlanData) else str(data or "")


def _summary(objects: Collection[KernelObject], names: DeviceNames) -> str:
    by_kind = groupby(sorted(objects, reverse=True), kind_of)
    counts = {kind: len(list(some)) for kind, some in by_kind}
    told = ", ".join(f"{n:,} {kind.singular if n == 1 else kind.plural}" for kind, n in counts.items())
    first = "; ".join(text(item, names) for item in sorted(objects)[-_MOST_OBJECTS:][::-1])
    return f"{told}: {first}{'; ...' if len(objects) > _MOST_OBJECTS else ''}"


def _owners(objects: Collection[KernelObject], peers: Iterable[Peer]) -> tuple[tuple[Subject, ...], int]:
    """The peers that need these objects; one more than are named stands for more."""
    wanted = frozenset(objects)
    owners = list(islice((peer for peer in peers if not wanted.isdisjoint(peer.objects)), MOST_NAMED + 1))
    return tuple(map(_name, owners[:MOST_NAMED])), len(owners)


def _of_others(peers: Iterable[Peer], is_away: Callable[[str], bool]) -> Iterator[Condition]:
    for peer in peers:
        is_lost = not is_away(peer.lease.name)
        for refusal in peer.refusals:
            if refusal.rule == NO_ADDRESS:
                continue  # a finding of this node says it
            if refusal.rule in _OWN_CLAIMS or refusal.rule in KINDS:
                of_this_node = refusal.rule in _OWN_CLAIMS
                said = found(
                    "peer.claim",
                    who=f"Node {peer.lease.node}" if peer.lease.node else f"The lease {peer.lease.name}",
                    whose="of this node" if of_this_node else "of another node",
                    lease=peer.lease.name,
                    reason=refusal.reason,
                    away="" if is_lost else _AWAY,
                )
            elif peer.objects and refusal.rule in WHOLE:
                continue  # it is carried as before its change
            else:
                away = "" if is_lost else _AWAY
                said = found("peer.refused", lease=peer.lease.name, reason=refusal.reason, away=away)
            yield replace(
                said,
                evidence=f"leases: {_title(peer.lease)}",
                peers=((peer.lease.name, peer.lease.node),),
                weight=BROKEN if is_lost else WARNING,
                is_remote=not is_lost,
            )
