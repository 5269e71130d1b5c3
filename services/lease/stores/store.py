"""What a store is: a few calls and a stream of what happens in it.

Beside that are what several stores share: the events of a table that another lease service sends, the log lines of an
allocation, and a network configuration in a file.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.ipam import Allocation, Reclaim
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Progress
from flannelette.services.core.leases.table import (
    NO_OVERRIDES,
    Change,
    PublicIpOverrides,
    Removed,
    StoreStatus,
    Table,
    Upserted,
)
from flannelette.services.core.network import NetworkConfig, parse_network
from flannelette.services.runtime.os.files import why_unreadable
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


class RefusalKind(Enum):
    """Why a key of a store is refused."""

    UNREADABLE = "unreadable"
    """The key holds no lease."""
    OUTSIDE_NETWORK = "outside_network"
    """The key holds a lease that lies outside the network."""


@frozen
class Refusal:
    """A key of a store is refused: nodes get nothing of it."""

    kind: RefusalKind
    reason: str
    """Why nodes get nothing, in one sentence."""


class LostLease(NamedTuple):
    """A lease that the store has lost, or holds otherwise than its node wrote it; nodes still have it."""

    name: str
    since: float
    """Seconds, on the clock of the sender; another value means that the lease was lost again."""


@frozen
class Snapshot:
    """The whole content of a store. The broker finds out by value what it changes."""

    leases: Mapping[str, Lease]
    network: NetworkConfig | None
    network_error: str = ""
    """Why the stored configuration is not in force; then `network` is None, and the last good one stays."""
    refused: Mapping[str, str | Refusal] = field(default_factory=dict)
    """Keys that are no lease, with the reason. They change nothing. A relay hands on a Refusal, of any kind."""
    overrides: Mapping[str, PublicIpOverrides] = field(default_factory=dict)
    """What operators have chosen for nodes, by node; it counts whether or not the node has a lease."""
    awaited: frozenset[str] = frozenset()
    """Clusters whose leases this store does not know yet (a relay's only)."""
    is_other_history: bool = False
    """The store was replaced, emptied or restored since the events before: nobody removed what is missing."""


@frozen
class Changed:
    """What happened since the last event, in order."""

    changes: tuple[Change, ...] = ()
    network: NetworkConfig | None = None
    """The new configuration; None: as before."""
    network_error: str = ""
    refused: Mapping[str, str | Refusal] = field(default_factory=dict)
    """Newly refused keys, or with a new reason; the lease that such a key held before stays as it was."""
    cleared: frozenset[str] = frozenset()
    """Keys that are refused no longer: good again, or gone."""
    released: frozenset[str] = frozenset()
    """Leases that were removed because a node or an operator asked some lease service to: that is no accident."""
    overrides: Mapping[str, PublicIpOverrides] | None = None
    """All of them, since they have changed; None: as before."""
    awaited: frozenset[str] | None = None
    """Clusters whose leases this store does not know yet, as in a Snapshot; None: as before."""


@frozen
class Reclaimed:
    """A lease that is taken back."""

    lease: Lease
    seen_at: float | None
    """Unix time of the last sign of life; None: nobody is known to have held it."""


StoreEvent: TypeAlias = Snapshot | Changed | StoreStatus


class Store(Protocol):
    """Where leases are kept. Every call raises what services/core/errors.py has; a lost connection is Unavailable."""

    @property
    def kind(self) -> str:
        """The kind of store: `embedded`, `etcd`, `kube` or `relay`."""
        ...

    def watch(self) -> AsyncIterator[StoreEvent]:
        """First a Snapshot, then what happens, for as long as it is iterated; one iteration at a time.

        Survives every fault of the store: says so with a StoreStatus that is not connected, reconnects with
        back-off, says so with one that is, and goes on without a gap (with a Snapshot where it cannot).
        """
        ...

    async def relist(self) -> Snapshot:
        """A second, complete listing: what the store holds now, read again and not taken from the watch.

        At least as new as everything that the watch delivered before the call. A key in
        `refused` is there, whether or not it is among the leases. Raises Unavailable.
        """
        ...

    async def acquire(self, request: LeaseRequest) -> Lease:
        """The lease of the node, made or updated; see AcquireLease in lease.proto for the order of choice.

        Raises NotYet, NameTaken, Exhausted, LostRace, Unavailable.
        """
        ...

    async def renew(self, node: str, name: str, machine: str = "") -> Lease:
        """The lease with its full time again; `machine` as in LeaseRequest.

        Raises NotFound, NameTaken, Unavailable.
        """
        ...

    async def release(self, node: str, name: str) -> None:
        """Gives it back; nothing happens if the node does not hold it. Raises Unavailable."""
        ...

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """Sets subnets aside, for a node or (empty) for nobody; what is set aside like that already is left as it is.

        Raises InvalidInput, AlreadyExists, NotYet (no network), NotImplementedYet (not this store's), Unavailable.
        """
        ...

    async def unreserve(self, name: str) -> None:
        """Ends a reservation; one that is in use becomes an ordinary lease. Raises NotFound, Unavailable."""
        ...

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """Takes back leases of nodes that are not alive, and says which; with `dry_run` only says it.

        Raises InvalidInput, NotFound, NotYet (one that was asked for may not go), Unavailable.
        """
        ...

    async def report(self, progress: Progress) -> float:
        """Tells the store how far a node's kernel is, where that is its business; nothing for most.

        Returns the seconds that the store asks the node to wait before its next report; 0 for most.

        Called for every report that is new, one at a time for a node. Raises Unavailable; the last report of a
        node is then passed again.
        """
        ...

    async def discard(self, key: str, seen: Lease | str) -> None:
        """Deletes what an operator wants gone: a key that is refused, if it still is what it was seen to be.

        `seen` is the lease that it holds, or the reason why the store refuses it, word for word. Raises NotFound (the
        key is gone), LostRace (it is something else by now), NotImplementedYet (not a thing this store deletes),
        Unavailable.
        """
        ...

    async def close(self) -> None:
        """Frees what the store holds on to. Leases stay."""
        ...


@runtime_checkable
class KnowsExpiry(Protocol):
    """A store whose leases expire at times that only it knows."""

    async def expiry_times(self) -> Mapping[str, float]:
        """When leases expire, in Unix seconds, by their names, as far as the store says. Raises Unavailable."""
        ...


RELAY: Final = "relay"
"""The kind of a store that is another lease service."""


class TableEvents:
    """The events by which the broker follows a feed's table.

    There is no event before the first complete table; from then on the last one stays in force, whatever becomes of
    the lease service above: what a new start of it lacks is removed when its snapshot is complete, and not before.
    """

    def __init__(self, address: str) -> None:
        self.touched: set[str] = set()
        """Leases that the feed has changed since the last events."""
        self.refused: dict[str, Refusal] = {}
        """Keys that are quarantined above."""
        self._address = address
        self._has_told = False
        self._network: tuple[NetworkConfig | None, str] = (None, "")
        self._refused: dict[str, Refusal] = {}
        self._choices: Mapping[str, PublicIpOverrides] = NO_OVERRIDES
        self._awaited: frozenset[str] = frozenset()
        self._status: StoreStatus | None = None

    def events(self, table: Table, connected: bool, error: str) -> list[StoreEvent]:
        """What has happened since the last call. `connected` and `error` are those of the feed."""
        events: list[StoreEvent] = []
        if not self._has_told:
            if table.synced:
                self._has_told, self._status = True, None  # a Snapshot means connected, true or not
                self._note(table)
                leases, refused = dict(table.leases), dict(self.refused)
                events.append(
                    Snapshot(leases, table.network, table.network_error, refused, table.overrides, table.awaited)
                )
        elif (changed := self._changed(table)) != Changed():
            events.append(changed)
        status = self._status_of(table, connected, error)
        if status is not None and status != self._status:
            self._status = status
            events.append(status)
        return events

    def _changed(self, table: Table) -> Changed:
        touched = sorted(self.touched)
        removed: list[Change] = [Removed(name) for name in touched if name not in table.leases]
        network, network_error = self._network
        mended = network_error and not table.network_error
        new = table.network if table.network != network or mended else None
        changed = Changed(
            # removals first, so that a subnet can change its name
            (*removed, *(Upserted(table.leases[name]) for name in touched if name in table.leases)),
            new,
            table.network_error if new or table.network_error != network_error else "",  # a network clears it
            {key: reason for key, reason in self.refused.items() if self._refused.get(key) != reason},
            frozenset(self._refused.keys() - self.refused.keys()),
            overrides=table.overrides if table.overrides != self._choices else None,
            awaited=table.awaited if table.awaited != self._awaited else None,
        )
        self._note(table)
        return changed

    def _note(self, table: Table) -> None:
        self.touched.clear()
        self._network = (table.network, table.network_error)
        self._refused = dict(self.refused)
        self._choices, self._awaited = table.overrides, table.awaited

    def _status_of(self, table: Table, connected: bool, error: str) -> StoreStatus | None:
        """None: as before, while a snapshot is on its way."""
        if not connected:
            return StoreStatus(RELAY, False, error)
        upstream = table.store
        if upstream is not None and not upstream.connected:
            return StoreStatus(
                RELAY,
                False,
                f"the {upstream.kind} store of the lease service at {self._address} is away: {upstream.error}",
            )
        return StoreStatus(RELAY, True) if table.is_complete else None


def log_allocation(chosen: Allocation, node: str) -> None:
    """Logs which lease a node is given, and what others lose by it."""
    for rival in sorted(chosen.rivals):
        log.warning("a public address, MAC or key is taken over: its node is not alive", node=node, rival=rival)
    for claim in chosen.given_up:
        log.info("a lease is given up", lease=claim.name, held_by=claim.node, for_node=node)
    if chosen.current is None or chosen.current.node != node:
        log.info("lease given", lease=chosen.lease.name, node=node, adopted=chosen.current is not None)


def read_network_file(path: Path, *, leases_subnets: bool = True) -> NetworkConfig:
    """flannel's JSON, read anew. Raises InvalidInput, with the file and what to do."""
    try:
        return parse_network(path.read_text(encoding="utf-8"), leases_subnets=leases_subnets)
    except FileNotFoundError:
        reason = (
            f"there is no network configuration {path}: write flannel's JSON there (in Kubernetes, mount the "
            "ConfigMap with net-conf.json), or name another file with --net-config-path"
        )
    except PermissionError as error:
        reason = f"the network configuration {path} {why_unreadable(path, error)}"
    except OSError as error:
        reason = f"cannot read the network configuration {path}: {error.strerror}"
    except InvalidInput as error:
        reason = f"{error} (in {path})"
    except ValueError:
        reason = f"the network configuration {path} is not UTF-8 text"
    raise InvalidInput(reason)
