"""The state of a node in a file: the lease table and the own lease, for a start while no lease service answers."""

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

from flannelette.services.core.family import Network
from flannelette.services.core.formats.ip_text import parse_cidr
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Table, Upserted
from flannelette.services.core.limits import nearest_time
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime import older_state
from flannelette.services.runtime.cache.table_records import network_in, step_in, table_in, table_records
from flannelette.services.runtime.lease.wire import step_to_bytes
from flannelette.services.runtime.state import Named, Older, Record, RecordFile, UnreadableState, keep, locked
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_NODE: Final = "node"
_OWN: Final = "own"
_EARLIER: Final = "earlier"
_OF_NODE: Final = frozenset((_NODE, _OWN, _EARLIER))


@dataclass(frozen=True, slots=True)
class NodeState:
    """The cached state of one node."""

    node: str
    own: Lease | None
    """The lease that the node has published."""
    previous_subnets: tuple[Network, ...]
    """The last one first."""
    table_records: Sequence[Record]
    """The last complete lease table."""
    earlier_networks: tuple[NetworkConfig, ...] = ()
    """Configurations before the one in force, whose backends some peer still had; the last one first."""

    @property
    def network(self) -> NetworkConfig | None:
        """The network configuration that was in force on the node; None if it cannot be read."""
        return network_in(self.table_records)

    def table(self) -> Table:
        """The complete table with the own lease, without a cursor to resume from. Raises UnreadableState."""
        table = table_in(self.table_records)
        if table.network is None or not table.synced:
            raise UnreadableState("the file has no complete lease table")
        if self.own is not None:
            table.leases[self.own.name] = self.own
        return table


def kind_of(service: str) -> str:
    """The kind of the file of a service."""
    return f"{service}.state"


def older_of(service: str) -> Older:
    """The reader of the file that a release before 0.3 has left."""
    return partial(older_state.node_state, kind_of(service))


def records_of(
    node: str,
    own: Lease | None,
    previous: Sequence[Network],
    table: Iterable[Named],
    earlier: Sequence[NetworkConfig] = (),
    machine: str = "",
) -> Iterator[Named]:
    """The state as records, among them those of its lease table. `machine`: the token of this one."""
    identity = {"node": node, "machine": machine} if machine else {"node": node}
    head = [Record.of_json(_NODE, {**identity, "former_subnets": [str(each) for each in previous]})]
    if own is not None:
        head.append(Record.of_bytes(_OWN, step_to_bytes(Step(changes=(Upserted(own),)))))
    return chain(head, (Record.of_bytes(_EARLIER, step_to_bytes(Step(network=each))) for each in earlier), table)


def state_in(records: Sequence[Record], node: str, machine: str = "") -> NodeState:
    """The state of this node and machine in the records of a file. Raises UnreadableState."""
    of_node = [each for each in records if each.name in _OF_NODE]
    steps = {name: [step_in(each) for each in of_node if each.name == name] for name in (_OWN, _EARLIER)}
    header: Any = next((each.json() for each in of_node if each.name == _NODE), None)
    if header is None:
        raise UnreadableState(f"the record {_NODE}, which every file has, is damaged")
    try:
        if header["node"] != node:
            raise UnreadableState(f"the file is of node {header['node']!a}, and this is node {node!a}")
        if machine and header.get("machine", machine) != machine:
            raise UnreadableState("the file is of another machine")
        previous = [parse_cidr(text) for text in header["former_subnets"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableState(f"the record {_NODE} cannot be read: {error}") from None
    own = next((c.lease for step in steps[_OWN] for c in step.changes if isinstance(c, Upserted)), None)
    networks = tuple(step.network for step in steps[_EARLIER] if step.network is not None)
    table = [each for each in records if each.name not in _OF_NODE]
    return NodeState(node, own, tuple(each for each in previous if each is not None), table, networks)


class StateFile(RecordFile):
    """The file of the cached state. Without a usable directory nothing is stored, and the reason is logged once.

    The file is locked while this process lives: of two dataplanes with the same directory, the second stores and
    reads nothing, because the first may run in another network namespace. Different services may share a directory.
    """

    def __init__(self, directory: str, service: str, machine: str = "") -> None:
        super().__init__(Path(directory, f"{service}.state"), kind_of(service), older=older_of(service))
        self.machine = machine
        """The token of this machine: the state of another one is refused."""
        self._lock = -1
        if directory:
            self._open(Path(directory), service)

    @property
    def is_usable(self) -> bool:
        """Whether the state is written to the file."""
        return self._lock >= 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the file's lock, if it is held."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def state_of(self, node: str) -> tuple[NodeState, float] | None:
        """The cached state, and the Unix time at which it was last confirmed; None if there is none.

        A file that cannot be used stays where it is.
        """
        if not self.is_usable or not (records := self.read()):
            return None
        try:
            return state_in(records, node, self.machine), nearest_time(self.path.stat().st_mtime)
        except (OSError, UnreadableState) as error:
            self.reject(error)
            return None

    def _open(self, directory: Path, service: str) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = locked(directory / f".{service}.lock")  # the file itself is replaced by every write
            self.clean()
        except BlockingIOError:
            self._log_unused(f"another {service} keeps its state in {directory}: give this one its own --state-dir")
        except OSError as error:
            if os.path.lexists(self.path):
                self.note(f"cannot write {self.path}: {error.strerror}")
            else:
                self._log_unused(f"cannot use {directory}: {error.strerror}")

    def _log_unused(self, reason: str) -> None:
        log.warning("no state is kept for a reboot during an outage", reason=reason)


PATIENCE: Final = 1.0
"""Seconds that a lease service has to begin a snapshot. A lease service that starts at the same time takes less."""


class CachedTable:
    """The lease table from the state file. `table` is None while it is not in force, and after the first snapshot."""

    def __init__(self, node: str, file: StateFile) -> None:
        found = file.state_of(node)
        state = found[0] if found else None
        self.own = state.own if state else None
        """The lease that the node had published."""
        self.previous_subnets = state.previous_subnets if state else ()
        """Previous subnets of the node, the last one first."""
        self.network = state.network if state else None
        """The network configuration that was in force on this node."""
        earlier = state.earlier_networks if state else ()
        self.networks = earlier if self.network is None else (self.network, *earlier)
        """The same, and those before it whose backends some peer still had."""
        self.table: Table | None = None
        self.confirmed_at = found[1] if found else 0.0
        """Unix time at which the table was last confirmed."""
        self._file = file
        self._state = state

    @property
    def since(self) -> str:
        """The age of the table and the reason why it is in force, as text."""
        when = datetime.fromtimestamp(self.confirmed_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{when}: no lease service has sent any since the start"

    def choose(self, received: Table, *, is_away: bool) -> Table | None:
        """The table in force: the received one if complete, else the cached one; None: neither is usable yet.

        Where the received one awaits the leases of another cluster, those that are cached are put into it.
        `is_away`: no lease service is about to send a snapshot.
        """
        if received.synced and received.network is not None:
            if received.awaited and self._state is not None:
                self.table = self._open(self._state)
            if received.awaited and self.table is not None:
                received.adopt(self.table.leases)
            self._state, self.table = None, None
            return received
        if self.table is None and self._state is not None and is_away:
            self.table, self._state = self._open(self._state), None
        return self.table

    def _open(self, state: NodeState) -> Table | None:
        try:
            table = state.table()
        except UnreadableState as error:
            self._file.reject(error)
            return None
        log.warning("the cached leases are in force until a lease service sends its table", leases=len(table.leases))
        return table


def stale_reason(lease: Lease, confirmed_at: float, now: float) -> str:
    """Why a cached lease may belong to another node by now; empty: it is still the node's."""
    if lease.expires_at is None:
        return ""  # a reservation, or a subnet that the store assigns by node name, as Kubernetes does
    if now < confirmed_at:
        return "the clock is behind the time at which the lease was last confirmed"
    return "the lease has expired" if now >= lease.expires_at else ""


_WRITE_INTERVAL: Final = 10.0
"""Least seconds between two writes. Another configuration is not kept waiting: an earlier backend must be known."""
_WRITE_INTERVAL_PER_LEASE: Final = 0.005
"""The same for each lease: a lease takes 5 µs to write, so that writes take at most a thousandth of a core."""
_CONFIRM_INTERVAL: Final = 600.0
"""Seconds between two updates of the file's time while nothing changes."""


class CacheWriter:
    """A task that keeps the state file current. While nothing changes, it only updates the file's time.

    Guarantee: what is written was a complete table at one moment, never one between a reset and its end. The event
    loop is not blocked: leases are encoded in small portions, and a thread waits for the disk.
    """

    def __init__(self, node: str, file: StateFile) -> None:
        self._node = node
        self._file = file
        self._table = Table()
        self._networks: Sequence[NetworkConfig] = ()
        self._own: Lease | None = None
        self._previous: Sequence[Network] = ()
        self._is_current = False
        self._written: object = None
        """The version in the file."""
        self._has_news = asyncio.Event()
        self._has_new_networks = asyncio.Event()

    def update(
        self,
        table: Table,
        own: Lease | None,
        previous: Sequence[Network],
        *,
        is_current: bool,
        networks: Sequence[NetworkConfig] = (),
    ) -> None:
        """Sets the state to be written. `is_current`: the lease service and its store are connected.

        `networks` are the configuration in force on the node, if it may differ from the table's, and earlier ones
        whose backends some peer still has.
        """
        self._table, self._own, self._previous, self._is_current = table, own, previous, is_current
        before = self._networks
        self._networks = tuple(networks) or ((table.network,) if table.network is not None else ())
        if self._networks != before:
            self._has_new_networks.set()
        if self._is_complete and self._written != self._version():
            self._has_news.set()

    async def run(self) -> None:
        """Writes changes until it is cancelled; nothing if the file cannot be used."""
        await keep(
            self._has_news.wait,
            self.write,
            pause=lambda: max(_WRITE_INTERVAL, _WRITE_INTERVAL_PER_LEASE * len(self._table.leases)),
            every=_CONFIRM_INTERVAL,
            urgent=self._has_new_networks,
        )

    async def write(self) -> bool:
        """Writes unwritten changes, or confirms that there are none. Call it at the end of the process too."""
        self._has_news.clear()
        table, version = self._table, self._version()
        if not (self._file.is_usable and self._is_complete):
            return True
        if self._written == version and (not self._is_current or await self._file.confirm()):
            return True
        network, *earlier = self._networks
        own = self._own
        others = [lease for lease in table.leases.values() if own is None or lease.node != self._node]
        leases = table_records(network, others, table.store, table.overrides)
        records = records_of(self._node, own, self._previous, leases, earlier, self._file.machine)
        is_written = await self._file.write_slowly(records)
        self._written = version if is_written else None
        return is_written

    @property
    def _is_complete(self) -> bool:
        return self._table.is_complete and bool(self._networks)

    def _version(self) -> object:
        return self._table.revision, self._networks, self._own, tuple(self._previous)
