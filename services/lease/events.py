"""Events of this service: their kinds, and how changes of leases, nodes, requests and the network become events."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from typing import Final

from flannelette.services.core.formats.text import count
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Table
from flannelette.services.runtime import events
from flannelette.services.runtime.events import MOST_NAMED, Event, RecordedEvent, Subject
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_GROUP_SECONDS: Final = 1.0


class LeaseEventKind(Enum):
    """The kind of an event, as EventKind in lease.proto, which says what each means."""

    SERVICE_STARTED = auto()
    READINESS = auto()
    STORE = auto()
    NETWORK = auto()
    LEASE_ACQUIRED = auto()
    LEASE_CHANGED = auto()
    LEASE_REMOVED = auto()
    LEASE_EXPIRED = auto()
    LEASE_REFUSED = auto()
    LEASE_RENEWED = auto()
    REMOVALS_HELD = auto()
    REMOVALS_ENDED = auto()
    QUARANTINED = auto()
    QUARANTINE_ENDED = auto()
    NODE_CONNECTED = auto()
    NODE_DISCONNECTED = auto()
    OPERATOR = auto()
    IMPORT = auto()


_MANY: Final = {
    LeaseEventKind.LEASE_ACQUIRED: "leases acquired",
    LeaseEventKind.LEASE_CHANGED: "leases changed",
    LeaseEventKind.LEASE_REMOVED: "leases removed",
    LeaseEventKind.LEASE_EXPIRED: "leases expired",
    LeaseEventKind.LEASE_REFUSED: "requests for leases refused",
    LeaseEventKind.LEASE_RENEWED: "leases renewed after failures",
    LeaseEventKind.QUARANTINED: "keys refused",
    LeaseEventKind.QUARANTINE_ENDED: "keys no longer refused",
    LeaseEventKind.IMPORT: "leases of other clusters not imported",
    LeaseEventKind.NODE_CONNECTED: "nodes connected",
    LeaseEventKind.NODE_DISCONNECTED: "nodes disconnected",
}
"""Kinds of which many may come at once, in the words for the rest of them."""


class LeaseJournal(events.Journal):
    """The journal, in which a thousand nodes that come within a second are nine events.

    Of these kinds it tells eight in a second one by one, and the rest as one at the end of the second.
    """

    def __init__(self, earlier: Sequence[RecordedEvent] = (), timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(earlier=earlier)
        self.is_stopping = False
        """Streams end because the service does."""
        self._timer = timer
        self._begun = -_GROUP_SECONDS
        self._told: Counter[LeaseEventKind] = Counter()
        self._rest: dict[LeaseEventKind, list[Subject]] = {}
        self._counts: Counter[LeaseEventKind] = Counter()
        self._has_rest = asyncio.Event()

    def note_one(self, kind: LeaseEventKind, subject: Subject, words: Callable[[], tuple[str, str]]) -> None:
        """Notes an event of which many may come at once; `words` makes what happened and why, if it is told alone."""
        now = self._timer()
        if now - self._begun >= _GROUP_SECONDS:
            self.flush()
            self._begun = now
        if self._told[kind] < MOST_NAMED:
            self._told[kind] += 1
            what, cause = words()
            self.note(Event(kind, what, cause, subjects=(subject,), subject_count=1))
            return
        named = self._rest.setdefault(kind, [])
        if len(named) < MOST_NAMED:
            named.append(subject)
        self._counts[kind] += 1
        self._has_rest.set()

    def flush(self) -> None:
        """Notes the events that the limit held back, as one event of each kind."""
        for kind, subjects in self._rest.items():
            count = self._counts[kind]
            names = ", ".join(subject.of or subject.name for subject in subjects)
            dots = ", ..." if count > len(subjects) else ""
            what = f"{count:,} more {_MANY[kind]}: {names}{dots}"
            self.note(Event(kind, what, "within a second", subjects=tuple(subjects), subject_count=count))
        self._rest.clear()
        self._counts.clear()
        self._told.clear()
        self._has_rest.clear()

    async def run(self) -> None:
        """Tells the rest in time, until it is cancelled."""
        while True:
            await self._has_rest.wait()
            await asyncio.sleep(_GROUP_SECONDS)
            self.flush()


_EXPIRY_SECONDS: Final = 5.0
"""So long before its end, by our clock, a lease counts as expired when it goes."""
_MOST_TROUBLED: Final = 10_000


def tell_step(journal: LeaseJournal, step: Step, kind: str, leases: int) -> None:
    """The store and the network of a step, beside its leases. `leases` are in the table now."""
    if step.store is not None:
        is_back = "answers" if step.store.connected else "is away; the last leases stay in force"
        journal.note(Event(LeaseEventKind.STORE, f"the {kind} store {is_back}", step.store.error))
    if step.synced:
        journal.note(Event(LeaseEventKind.STORE, f"the {kind} store was read: {count(leases, 'lease')}"))
    if step.network is not None:
        families = ", ".join(str(row.cidr) for row in step.network.families)
        what = f"network configuration: {families}, backend {step.network.backend_type}"
        journal.note(Event(LeaseEventKind.NETWORK, what, f"{kind} store"))
    elif step.network_error:
        what = "the network configuration cannot be used; the last good one stays in force"
        journal.note(Event(LeaseEventKind.NETWORK, what, step.network_error))


def tell_lease(journal: LeaseJournal, before: Lease | None, after: Lease | None, *, is_released: bool) -> None:
    """What became of a lease. A renewal is no news. `is_released`: a node or an operator asked for its removal."""
    lease = after or before
    if lease is None or (before and after and content(before) == content(after)):
        return
    subject = Subject(lease.name, lease.node)
    if after is None:
        has_expired = lease.expires_at is not None and lease.expires_at < time.time() + _EXPIRY_SECONDS
        if has_expired and not is_released:
            kind, verb, cause = LeaseEventKind.LEASE_EXPIRED, "expired", "not renewed in time"
        else:
            there = f"no longer exported by cluster {lease.cluster}" if lease.cluster else "no longer in the store"
            cause = "released by its node or an operator" if is_released else there
            kind, verb = LeaseEventKind.LEASE_REMOVED, "removed"
    elif before is None:
        kind, verb, cause = LeaseEventKind.LEASE_ACQUIRED, "imported" if lease.cluster else "acquired", ""
    else:
        kind, verb, cause = LeaseEventKind.LEASE_CHANGED, "changed", _title(before)
    noun = "reservation" if lease.is_idle else "lease"
    journal.note_one(kind, subject, lambda: (f"{noun} {verb}: {_title(lease)}", cause and _was(kind, cause)))


def tell_held(journal: LeaseJournal, names: Collection[str], cause: str) -> None:
    """The guard holds back the removal of these leases."""
    _tell_removals(
        journal, LeaseEventKind.REMOVALS_HELD, f"removals held back: {count(len(names), 'lease')}", names, cause
    )


def tell_ended(journal: LeaseJournal, names: Collection[str], cause: str) -> None:
    """The guard holds back the removal of these leases no longer."""
    what = f"removals no longer held back: {count(len(names), 'lease')}"
    _tell_removals(journal, LeaseEventKind.REMOVALS_ENDED, what, names, cause)


class Requests:
    """The failing requests of nodes for leases: one that is repeated is told once for each kind of error."""

    def __init__(self, journal: LeaseJournal, timer: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._timer = timer
        self._troubled: dict[str, tuple[float, int, str]] = {}
        """When a node's requests began to fail, how many have, and the code of the last error, by node."""

    def failed(self, node: str, name: str, call: str, code: str, reason: str) -> None:
        """A request of the node for the lease failed."""
        node = node[:256]
        since, count, last = self._troubled.pop(node, (self._timer(), 0, ""))
        self._troubled[node] = since, count + 1, code
        if len(self._troubled) > _MOST_TROUBLED:
            del self._troubled[next(iter(self._troubled))]
        if code != last:
            words = f"{call} of {node or 'a node without a name'} refused ({code})", reason
            self._journal.note_one(LeaseEventKind.LEASE_REFUSED, Subject(name[:256], node), lambda: words)

    def succeeded(self, node: str, name: str) -> None:
        """A request of the node for the lease succeeded."""
        if (trouble := self._troubled.pop(node, None)) is None:
            return
        since, count, code = trouble
        seconds = self._timer() - since
        words = f"lease {name} of {node} renewed", f"after {count:,} failures ({code}) in {seconds:.0f} s"
        self._journal.note_one(LeaseEventKind.LEASE_RENEWED, Subject(name, node), lambda: words)


class NodeEvents:
    """Tells which nodes come and go (ConnectionListener)."""

    def __init__(self, journal: LeaseJournal, streams_of: Callable[[str], Sequence[object]]) -> None:
        """`streams_of`: the open streams of a node."""
        self._journal = journal
        self._streams_of = streams_of

    def on_connect(self, node: str) -> None:
        """A stream of its dataplane was opened."""
        if len(self._streams_of(node)) == 1:
            self._journal.note_one(
                LeaseEventKind.NODE_CONNECTED, Subject("", node), lambda: (f"node {node} connected", "its dataplane")
            )

    def on_disconnect(self, node: str) -> None:
        """The last stream of its dataplane has ended. All do when we stop, which is no news of a node."""
        if not self._journal.is_stopping:
            self._journal.note_one(
                LeaseEventKind.NODE_DISCONNECTED,
                Subject("", node),
                lambda: (f"node {node} disconnected", "its dataplane's last stream has ended"),
            )


def log_network(table: Table) -> None:
    """Logs which network configuration is in force."""
    if table.network_error:
        log.warning(
            "the network configuration in the store is not in force",
            reason=table.network_error,
            in_force=table.network.shown if table.network else None,
        )
    elif table.network:
        log.info("the network configuration is in force", network=table.network.shown)


def _tell_removals(
    journal: LeaseJournal, kind: LeaseEventKind, what: str, names: Collection[str], cause: str
) -> None:
    first = tuple(map(Subject, sorted(names)[:MOST_NAMED]))
    journal.note(Event(kind, what, cause, subjects=first, subject_count=len(names)))


def content(lease: Lease) -> tuple[object, ...]:
    """What a lease publishes: a renewal leaves it as it is."""
    return lease.node, lease.subnets, lease.backend_type, lease.reserved


def _title(lease: Lease) -> str:
    subnets = ", ".join(
        f"{subnet.cidr} at {subnet.public_address}" if subnet.public_address else str(subnet.cidr)
        for subnet in lease.subnets
    )
    return f"{lease.node or lease.name}, {subnets}"


def _was(kind: LeaseEventKind, cause: str) -> str:
    return f"was {cause}" if kind is LeaseEventKind.LEASE_CHANGED else cause
