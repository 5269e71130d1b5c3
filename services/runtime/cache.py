"""The state of a node in files: lease table, own lease and token of the machine, for a start while no lease service
answers.

A lease table is a record of the table itself, and one for each lease. The token tells this machine from others that
have the same node name (ADR 56). What the kernel or the firewall needs does not belong here.
"""

import asyncio
import errno
import fcntl
import json
import os
import socket
import sys
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, Final, Self

from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.addresses import parse_cidr
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import (
    NO_OVERRIDES,
    NodeOverrides,
    PublicIpOverrides,
    Step,
    StoreStatus,
    Table,
    Upserted,
)
from flannelette.services.core.limits import nearest_time
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime import older_state
from flannelette.services.runtime.lease.feed import readable_step
from flannelette.services.runtime.lease.wire import leases_to_bytes, step_to_bytes
from flannelette.services.runtime.state import (
    Named,
    Older,
    OtherVersion,
    Record,
    RecordFile,
    UnreadableState,
    keep,
    locked,
)
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_TABLE: Final = "table"
_LEASE: Final = "lease/"


def table_records(
    network: NetworkConfig | None,
    leases: Iterable[Lease],
    store: StoreStatus | None,
    overrides: Mapping[str, PublicIpOverrides] = NO_OVERRIDES,
) -> Iterator[Named]:
    """The records of a complete table."""
    return records_of_pieces(network, leases_to_bytes(leases), store, overrides)


def records_of_pieces(
    network: NetworkConfig | None,
    pieces: Iterable[tuple[str, bytes]],
    store: StoreStatus | None,
    overrides: Mapping[str, PublicIpOverrides] = NO_OVERRIDES,
) -> Iterator[Named]:
    """The same for leases that are serialised already, each as one change, by name."""
    all_overrides = NodeOverrides(overrides, complete=True)
    head = Step(reset=True, network=network, store=store, synced=True, overrides=all_overrides)
    yield Record.of_bytes(_TABLE, step_to_bytes(head))
    for name, piece in pieces:
        yield f"{_LEASE}{name}", b2a_base64(piece, newline=False)  # as Record.of_bytes, in half of the time


def network_in(records: Iterable[Record]) -> NetworkConfig | None:
    """The network configuration of the table; None if there is none, or none that can be read."""
    try:
        return step_in(next(record for record in records if record.name == _TABLE)).network
    except (UnreadableState, StopIteration):
        return None


def table_in(records: Iterable[Record], known: Mapping[str, Lease] = MappingProxyType({})) -> Table:
    """The table, without a cursor to resume from; empty without the record of the table. Raises UnreadableState.

    A lease that is `known` already is taken from there: only others have to be decoded.
    """
    table = Table()
    records = [record for record in records if record.name == _TABLE or record.name.startswith(_LEASE)]
    there = {name: known[name] for record in records if (name := record.name.removeprefix(_LEASE)) in known}
    table.fold(_step(record for record in records if record.name.removeprefix(_LEASE) not in there))
    if not table.synced:
        return Table()
    table.leases.update(there)
    return table


def table_of(file: RecordFile, known: Mapping[str, Lease] = MappingProxyType({})) -> Table:
    """The table in a file, as `table_in`; empty, and a line in the log, for a file that cannot be used."""
    try:
        return table_in(file.read(), known)
    except UnreadableState as error:
        file.reject(error)
        return Table()


def step_in(record: Record) -> Step:
    """The step in one record. Raises UnreadableState."""
    return _step([record])


def _step(records: Iterable[Record]) -> Step:
    """The bytes of several steps, one after the other, are one step. A lease that cannot be read is left out."""
    try:
        message = pb.WatchLeasesResponse.FromString(b"".join([record.bytes() for record in records]))
    except DecodeError as error:
        raise UnreadableState(f"the leases cannot be read: {error}") from None
    try:
        return readable_step(message)
    except InvalidInput as error:
        raise UnreadableState(f"the leases cannot be read: {error}") from None


_NAME: Final = "machine"
_COPIES: Final = 3
"""Copies of the record in the file: a bit that the disk flips damages one, or two if it was the end of a line."""
_NO_FILE: Final = (0, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EFBIG)
"""What is there can never be read: a link, a directory, a socket, another file."""
_INTERFACES: Final = Path("/sys/class/net")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_SO_NETNS_COOKIE: Final = 71
"""SO_NETNS_COOKIE of Linux 5.14 and newer: a number of the network namespace. Its inode is no such: the next
container gets that."""


class MachineToken:
    """The token in the file `machine` of --state-dir, made at the first start. Empty where it cannot be kept.

    It is made from the boot, the network namespace and the network cards, so that a container on the host's network
    that loses its directory at a restart is the machine that it was; the file carries it over a reboot. A copy of the
    directory on another machine gets a token of its own, which is seen by the hardware: none of the addresses of
    network cards is there any more that the file has.
    """

    def __init__(self, directory: str, interfaces: Path = _INTERFACES) -> None:
        self.problem = ""
        """Why a token that there is cannot be used or replaced; empty: it can, or there is no place for one."""
        self.token = ""
        if directory:
            path = Path(directory, "machine")
            is_there = os.path.lexists(path)  # an error is no answer, as where this user may not search
            try:
                self.token = _token(path, hardware_addresses(interfaces))
            except OSError as error:
                reason = f"cannot write {path}: {error.strerror}" if error.strerror else str(error)
                self.problem = reason if is_there else ""  # else there is no such directory, as before
                log.warning("this machine cannot be told from another one of its name", reason=reason)


def hardware_addresses(interfaces: Path = _INTERFACES) -> frozenset[str]:
    """The MACs that network cards have had from their makers; none in a container without cards."""
    found = set()
    try:
        for interface in interfaces.iterdir():
            if (interface / "device").exists() and _read(interface / "addr_assign_type") == "0":
                found.add(_read(interface / "address"))
    except OSError:
        return frozenset()
    return frozenset(found - {"", "00:00:00:00:00:00"})


def _token(path: Path, hardware: frozenset[str]) -> str:
    """The token in the file; a new one if there is none, or if it is another machine's. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path.parent):
        file = RecordFile(path, _NAME)
        token, known = _kept(file)
        if token and known and hardware and known.isdisjoint(hardware):
            log.warning("the network cards are others: this machine gets a new token, as the state may be a copy")
            token = ""
        if token and hardware in (known, frozenset()) and file.is_whole:
            return token
        made = token or _made(hardware)
        record = Record.of_json(_NAME, {"token": made, "hardware": sorted(hardware or known)})
        if not file.write([record] * _COPIES) and not token:  # else what is there still has the token
            raise OSError(file.problem)
        return made


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory: the dataplanes of several networks may have one, and start at once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # NFS locks no directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _made(hardware: frozenset[str]) -> str:
    """A token that is the same until the next boot; a random one where the boot or the namespace is not seen."""
    boot, namespace = _read(_BOOT), _namespace()
    if not (boot and namespace):
        return token_hex(16)
    return sha256(json.dumps(["flannelette-machine", boot, namespace, sorted(hardware)]).encode()).hexdigest()[:32]


def _namespace() -> int:
    """The number of the network namespace, which no other one has until the next boot; 0 if the kernel has none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            return int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
    except OSError:
        return 0


def _kept(file: RecordFile) -> tuple[str, frozenset[str]]:
    """The token of the file and the hardware that it was made on; empty without a file, or of one that is damaged.

    Raises OSError for one that another release, or this one at another time, may read.
    """
    try:
        for record in file.load():
            row = record.json()
            return str(row["token"]), frozenset(map(str, row["hardware"]))
    except FileNotFoundError:
        pass
    except OtherVersion as error:
        raise OSError(f"cannot read {file.path}: {error}") from None
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise OSError(f"cannot read {file.path}: {error.strerror}") from None
        file.reject(error)
    except (UnreadableState, LookupError, TypeError) as error:
        file.reject(error)
    return "", frozenset()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


_NODE: Final = "node"
_OWN: Final = "own"
_EARLIER: Final = "earlier"
_OF_NODE: Final = frozenset((_NODE, _OWN, _EARLIER))


@frozen
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
