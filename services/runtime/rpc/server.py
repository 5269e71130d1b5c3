"""The gRPC server of every service: where it listens, how much it takes, reflection, health and errors; and limits
on TCP connections: for each client address, for strangers in all, and in total.

gRPC limits the time of a handshake and the connections of each listener, so that TCP does not block a unix socket.
gRPC has no limit per client address, and does not report connections. So the process lists its own sockets, and shuts
down those that are too many; no proxy is needed in the data path. See ADR 28.

A filter on the listening socket has the kernel drop the first packet of each connection from some networks: a classic
BPF program (socket(7), SO_ATTACH_FILTER), for which a process needs no right where the socket is its own. Accepted
sockets inherit it, and lose nothing by it: it looks at packets that open a connection only.
"""

import ctypes
import fcntl
import os
import resource
import socket
import stat
import struct
import threading
import time
from asyncio import get_running_loop
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as grpc_reflection

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.networks import lock_of
from flannelette.services.runtime.os import own_sockets
from flannelette.services.runtime.os.own_sockets import Address
from flannelette.services.runtime.os.processes import give_back_memory, memory_limit
from flannelette.services.runtime.rpc.authorization import Authorizer, Callers
from flannelette.services.runtime.rpc.interceptor import ErrorInterceptor
from flannelette.services.runtime.rpc.transport import PLAIN, Transport, host_and_port
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger
from flannelette.services.runtime.telemetry.metrics import Counter

log = get_logger()

AddToServer = Callable[[grpc.aio.Server], None]

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else two processes on one port share its connections
    # Thousands of watchers may reconnect at once: the core's own limits are 1,000 and 3,000. Each takes some 16 KB.
    ("grpc.server.max_pending_requests", 6_000),
    ("grpc.server.max_pending_requests_hard_limit", 6_000),
    # Without this, the core hands on each call that a client begins and resets at once: 100,000 take 1 GB. A relay
    # has a call for each of its nodes that waits.
    ("grpc.max_concurrent_streams", 1_024),
    ("grpc.max_receive_message_length", 1 << 20),  # the largest request of ours is a report of 20 KB
    ("grpc.absolute_max_metadata_size", 8192),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # The connection of a frozen or dead client is closed after 28 s. Our clients ping every 10 s, which counts as
    # activity: 1,000 of them cost 0.4 % of a core, with this option and without.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 8_000),  # keepalive_timeout_ms has no effect in this core
)


class Server:
    """Serves the given servicers, by full name. Health, of each service and in total, is NOT_SERVING at first.

    With an authorizer, every call over TLS needs the certificate that the method requires (authorization.py).
    `network` is the name of the one that the process serves.
    """

    def __init__(
        self,
        servicers: Mapping[str, AddToServer],
        authorizer: Authorizer | None = None,
        options: Sequence[tuple[str, int]] = (),
        network: str = "",
    ) -> None:
        self._health = grpc_health.HealthServicer()
        self._names = ("", *servicers)
        interceptors = [*([authorizer] if authorizer else []), ErrorInterceptor(network)]
        self.grpc = grpc.aio.server(interceptors=interceptors, options=(*_OPTIONS, *options))
        for add in servicers.values():
            add(self.grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        enable_reflection((*servicers, health_name), self.grpc)

    async def start(self) -> None:
        """Starts to accept calls."""
        await self.publish(ready=False)
        await self.grpc.start()

    async def publish(self, *, ready: bool) -> None:
        """Sets the status of gRPC health."""
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, serving if ready else not_serving)

    async def stop(self, grace: float | None = None) -> None:
        """Sets health to NOT_SERVING for good, and ends open calls after `grace` seconds. May be called again."""
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace)


_KINDS: Final = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_EVERYBODYS: Final = frozenset(("/tmp", "/var/tmp", "/dev/shm", "/run/lock"))  # noqa: S108
"""Directories of all users of a host, which are often mounts."""
_LONGEST_PATH: Final = 107
"""sun_path of unix(7) is 108 bytes with its closing zero."""


@contextmanager
def bound(server: grpc.aio.Server, address: str, transport: Transport = PLAIN) -> Iterator[None]:
    """Binds the server to the address, and holds the lock of a unix socket while the block runs.

    A unix socket has mode 0660; its directory is made with mode 0770 if it is missing. grpc would silently replace
    the socket of a running server, so PATH.lock is locked first (flock, freed with the process).
    Raises Misconfigured: in use, too long, no permission, or TCP beyond loopback without TLS.
    """
    for path in socket_paths([address]):
        if len(os.fsencode(path)) > _LONGEST_PATH:
            raise Misconfigured(
                f"the socket path {path} is longer than {_LONGEST_PATH} bytes: use a shorter --socket-dir"
            )
        with locked(path):
            bind_path(server, path)
            yield
        return
    _bind(server, address, transport.server_credentials(address))
    yield


@contextmanager
def locked(path: Path) -> Iterator[os.stat_result]:
    """Holds the lock of a unix socket while the block runs; yields its stat. A missing directory is made.

    Raises Misconfigured: in use, no permission, a directory that anybody may write to, or something else in the place
    of the socket or of its lock.
    """
    lock = lock_of(path)
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o770)
        _require_own(path.parent)
        # Without O_NONBLOCK a pipe in its place would wait; a symbolic link would lock, or make, a file elsewhere.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o660)
    except OSError as error:
        if found := _in_place(lock, stat.S_ISREG):
            raise Misconfigured(
                f"{lock} is {found}, and not the lock of a socket: remove it, or use another --socket-dir"
            ) from None
        raise Misconfigured(
            f"cannot create {lock}: {error.strerror}; grant the service access, or use another --socket-dir"
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Misconfigured(
                f"{lock} is {_in_place(lock, stat.S_ISREG)}, and not the lock of a socket: remove it, or use another "
                "--socket-dir"
            )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Misconfigured(
                f"the socket {path} is in use by a running service: stop that service, or use another --socket-dir"
            ) from None
        if found := _in_place(path, stat.S_ISSOCK):
            raise Misconfigured(f"{path} is {found}, and not a socket: remove it, or use another --socket-dir")
        yield os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _require_own(directory: Path) -> None:
    """Raises Misconfigured for a directory in which anybody could put a socket or a lock in the place of ours.

    A volume of a container is only for those that mount it: an emptyDir has the mode 0777, in memory 1777.
    """
    is_volume = directory.is_mount() and str(directory.resolve()) not in _EVERYBODYS
    if directory.stat().st_mode & stat.S_IWOTH and not is_volume:
        raise Misconfigured(
            f"every user may write to the directory {directory}, and so take the place of the socket: "
            f"`chmod o-w {directory}`, or use another --socket-dir"
        )


def _in_place(path: Path, is_right: Callable[[int], bool]) -> str:
    """What is there instead, with its article; empty: the right kind, or nothing."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    return "" if is_right(mode) else _KINDS.get(stat.S_IFMT(mode), "a device")


def bind_path(server: grpc.aio.Server, path: Path) -> None:
    """Binds a server to a unix socket with mode 0660; the caller holds the lock. Raises Misconfigured."""
    before = os.umask(0o117)
    try:
        _bind(server, f"unix:{path}")
    finally:
        os.umask(before)


def socket_paths(addresses: Iterable[str]) -> list[Path]:
    """The paths of the unix sockets among the addresses."""
    return [Path(each.removeprefix("unix:")).absolute() for each in addresses if each.startswith("unix:")]


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
    try:
        if credentials is None:
            bound_port = server.add_insecure_port(address)
        else:
            bound_port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise Misconfigured(f"cannot listen on {address}: is it in use? ({error})") from None
    if not bound_port:
        raise Misconfigured(f"cannot listen on {address}: is it in use?")


_RESERVE: Final = 256
"""Descriptors kept free for files, the store, HTTP and clients of the unix socket."""
_MOST_DESCRIPTORS: Final = 1 << 20
"""The kernel's own limit (fs.nr_open), unless it was raised."""
HANDSHAKE_MS: Final = 5_000
"""gRPC's default is two minutes. A handshake takes milliseconds; a client that is cut off reconnects."""
_BYTES_A_CONNECTION: Final = 96 << 10


def raise_descriptor_limit() -> None:
    """Raises the soft limit to the hard limit: the usual default of 1,024 is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # then the limit stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def server_options(most: int, listeners: int) -> tuple[tuple[str, int], ...]:
    """Options of a gRPC server that limit each of its listeners to `most` connections. Raises Misconfigured."""
    if most < 1:
        raise Misconfigured(f"--max-connections is {most}: use 1 or more")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    room = min(max(limit - _RESERVE, limit // 2), _share_of_memory()) // listeners
    return (
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", max(min(most, room), 1)),
    )


def _share_of_memory() -> int:
    """Connections that leave a quarter of the memory that this process may have for all else."""
    return max(memory_limit() * 3 // 4 // _BYTES_A_CONNECTION, 1)


def tcp_ports(addresses: Iterable[str]) -> frozenset[int]:
    """The TCP ports among the listening addresses."""
    return frozenset(host_and_port(each)[1] for each in addresses if not each.startswith("unix:"))


_V1ALPHA: Final = "grpc.reflection.v1alpha"
_V1: Final = "grpc.reflection.v1"
_V1_SERVICE: Final = f"{_V1}.ServerReflection"


class _Pool:
    """The default pool, which here also finds methods, fields and enum values, by the file of their parent."""

    def __init__(self) -> None:
        self._pool: Any = descriptor_pool.Default()
        _add_v1(self._pool)

    def FindFileContainingSymbol(self, name: str) -> Any:  # noqa: N802 - grpcio's name
        """Raises KeyError for an unknown symbol."""
        try:
            return self._pool.FindFileContainingSymbol(name)
        except KeyError:
            return self._pool.FindFileContainingSymbol(name.rpartition(".")[0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def enable_reflection(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Adds reflection of these services, by full name, and of reflection itself to the server.

    It is v1, which grpcurl uses first, and v1alpha, which alone grpcio has. The messages of both are the same.
    """
    names = (*services, reflection.SERVICE_NAME, _V1_SERVICE)
    servicer: Any = grpc_reflection.ReflectionServicer(names, _Pool())
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        tuple(
            grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
            for name in (reflection.SERVICE_NAME, _V1_SERVICE)
        )
    )


def _add_v1(pool: Any) -> None:
    """Adds the descriptor of v1, a renamed copy of v1alpha's, to the pool. A second call changes nothing."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = file.name.replace("v1alpha", "v1")
    file.package = _V1
    for message in file.message_type:
        for field in message.field:
            if field.type_name:  # assigning to an unset field would set it
                field.type_name = field.type_name.replace(_V1ALPHA, _V1)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_V1ALPHA, _V1)
            method.output_type = method.output_type.replace(_V1ALPHA, _V1)
    pool.AddSerializedFile(file.SerializeToString())


MOST: Final = 400
"""Networks of a filter: the kernel limits a program by net.core.optmem_max, 20 KB by default."""
_ATTACH_FILTER: Final = 26
_DETACH_FILTER: Final = 27
_LOAD_BYTE, _LOAD_WORD, _RETURN = 0x30, 0x20, 0x06
_SHIFT_RIGHT, _JUMP, _IF_EQUAL, _IF_BITS = 0x74, 0x05, 0x15, 0x45
_NETWORK_HEADER: Final = 0xFFF00000
"""SKF_NET_OFF: offsets from here on are into the IP header."""
_FLAGS, _SYN = 13, 0x02
_ALL: Final = 0xFFFFFFFF
_Statement = tuple[int, int, int, int]


def attach(listening: socket.socket, networks: Collection[IPv4Network | IPv6Network]) -> None:
    """Drops connections from these networks, IPv4 addresses and /64 of IPv6, at most MOST; none: all are let in.

    Raises OSError.
    """
    if not networks:
        listening.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
        return
    program = b"".join(struct.pack("=HBBI", *each) for each in _program(networks))
    text = ctypes.create_string_buffer(program)
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(text))
    listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)


def _program(networks: Collection[IPv4Network | IPv6Network]) -> Iterator[_Statement]:
    old = [each.network_address for each in networks if isinstance(each, IPv4Network)][:MOST]
    new = [each for each in networks if isinstance(each, IPv6Network)][: MOST - len(old)]
    yield (_LOAD_BYTE, 0, 0, _FLAGS)
    yield (_IF_BITS, 1, 0, _SYN)
    yield (_RETURN, 0, 0, _ALL)
    yield (_LOAD_BYTE, 0, 0, _NETWORK_HEADER)
    yield (_SHIFT_RIGHT, 0, 0, 4)
    yield (_IF_EQUAL, 0, 1, 6)
    yield (_JUMP, 0, 0, 2 + 2 * len(old))
    yield from _of_ipv4(old)
    for each in new:
        high, low = struct.unpack("!II", each.network_address.packed[:8])
        yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8)
        yield (_IF_EQUAL, 0, 3, high)
        yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12)
        yield (_IF_EQUAL, 0, 1, low)
        yield (_RETURN, 0, 0, 0)
    yield (_RETURN, 0, 0, _ALL)


def _of_ipv4(addresses: Collection[IPv4Address]) -> Iterator[_Statement]:
    yield (_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12)
    for each in addresses:
        yield (_IF_EQUAL, 0, 1, int(each))
        yield (_RETURN, 0, 0, 0)
    yield (_RETURN, 0, 0, _ALL)


_CHECK_SECONDS: Final = 1.0
_LONGEST_CHECK_SECONDS: Final = 10.0
"""Seconds between two looks while no client connects over TLS."""
_HANDSHAKES_A_CHECK: Final = 64
"""Number of new handshakes after which the next look is due at once."""
_STRANGE_SECONDS: Final = HANDSHAKE_MS / 1000 + 1
"""Seconds after which a connection over TLS that is still open has shown a certificate."""
_MOST_STRANGERS: Final = 256
"""Largest number of connections over TLS whose client is not known, of 60 KiB each; of more, three quarters stay.

Where an address may have more connections, as for the nodes behind one NAT, which connect at once, it is so many.
"""
_STRANGERS_AT_ALL: Final = 2_048
_MOST_FAILURES: Final = 16
"""Strangers of one address that go or are closed within the time below, while there are too many in all: then the
address gets no connection for a while.
"""
_FAILURE_SECONDS: Final = 10.0
_SHORTEST_BAN_SECONDS: Final = 10.0
_LONGEST_BAN_SECONDS: Final = 640.0
_MOST_NAMED: Final = 8
_IPV4_BYTES: Final = 4

_CLOSED = Counter("flannelette_connections_closed", "Connections over TCP closed because their address had too many")
_STRANGERS_CLOSED = Counter(
    "flannelette_handshakes_closed", "Connections over TCP closed before their handshake, because there were too many"
)


Peer = bytes
"""What a client is counted as: the IPv4 address, or the first half of an IPv6 address."""


class _Connection(NamedTuple):
    """An accepted connection to one of the ports."""

    descriptor: int
    inode: int
    number: int
    """Place in the order of discovery."""
    peer: Peer
    endpoint: Address
    since: float
    """When it was discovered, on a clock."""


class _Listener(NamedTuple):
    """A listening socket of one of the ports."""

    descriptor: int
    inode: int


class _Failures:
    """The connections of one address that ended before the client was identified."""

    def __init__(self) -> None:
        self.number = 0
        self.since = 0.0
        self.banned_until = 0.0
        self.ban_seconds = 0.0

    def note(self, number: int, now: float) -> bool:
        """Counts them; returns whether the address is banned by them now."""
        if now - self.since > _FAILURE_SECONDS:
            self.number, self.since = 0, now
        self.number += number
        return self.number > _MOST_FAILURES and self.ban(now)

    def ban(self, now: float) -> bool:
        """Bans the address, the longer the shorter the last time is ago; returns whether it was not."""
        if now < self.banned_until:
            return False
        is_early = now - self.banned_until < _LONGEST_BAN_SECONDS
        self.ban_seconds = min(2 * self.ban_seconds, _LONGEST_BAN_SECONDS) if is_early else 0.0
        self.ban_seconds = max(self.ban_seconds, _SHORTEST_BAN_SECONDS)
        self.banned_until, self.number = now + self.ban_seconds, 0
        return True

    def is_over(self, now: float) -> bool:
        """Whether nothing of it counts any more."""
        return now - max(self.banned_until + self.ban_seconds, self.since) > _FAILURE_SECONDS


class ConnectionLimiter:
    """Closes TCP connections to these ports: beyond `most` from one address, and of too many strangers.

    `callers` knows who calls over TLS; None: without TLS there is no handshake, and everybody is a stranger. What
    `callers` cuts off is closed too. Raises Misconfigured when made.
    """

    def __init__(self, ports: frozenset[int], most: int, callers: Callers | None = None) -> None:
        if most < 1:
            raise Misconfigured(f"--max-connections-per-address is {most}: use 1 or more")
        self._ports = ports
        self._most = most
        self._most_strangers = max(_MOST_STRANGERS, min(most, _STRANGERS_AT_ALL))
        self._callers = callers
        self._known: dict[int, _Connection | _Listener | None] = {}
        """Sockets by inode, which is unique while the socket is open; None: not a connection to one of the ports."""
        self._failures: defaultdict[Peer, _Failures] = defaultdict(_Failures)
        self._filtered: frozenset[Peer] = frozenset()
        self._crowded_until = 0.0
        self._is_trimmed = True
        self._numbers = count()
        self._handshakes = 0
        """Number of handshakes since the last look."""
        self._shut_down = frozenset[int]()
        """Inodes of connections that gRPC has still to free."""
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._may_log = LogLimiter()
        if callers is not None:
            callers.on_cut = self._wake.set

    def note_handshake(self) -> None:
        """A handshake begins; for any thread, and at once. Many of them are looked at soon."""
        self._handshakes += 1
        if self._handshakes >= _HANDSHAKES_A_CHECK:
            self._wake.set()

    async def run(self) -> None:
        """Checks once a second, and where much happens at once, until cancelled: in a thread, beside a busy loop."""
        done, loop = get_running_loop().create_future(), get_running_loop()

        def work() -> None:
            try:
                self._work()
            finally:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(done.cancel)

        threading.Thread(target=work, name="connections", daemon=True).start()
        try:
            await done
        finally:
            self._ended.set()
            self._wake.set()

    @property
    def _is_quiet(self) -> bool:
        """Whether nobody has come over TLS since the last look, so that nothing is to be closed."""
        return self._callers is not None and not (self._handshakes or self._callers.has_cut or self._failures)

    def _work(self) -> None:
        looked = 0.0
        while not self._ended.is_set():
            self._wake.wait(_CHECK_SECONDS)
            self._wake.clear()
            if self._is_quiet and time.monotonic() - looked < _LONGEST_CHECK_SECONDS:
                continue
            looked = time.monotonic()
            try:
                self._tell(self.close_excess())
            except OSError as error:  # no descriptor is left for a look: that look is left out
                if self._may_log(""):
                    log.warning("connections over TCP cannot be counted; tried again every second", reason=str(error))

    def _tell(self, excess: Mapping[str, int]) -> None:
        for peer, closed in excess.items():
            _CLOSED.inc(closed)
            if self._may_log(peer):
                log.warning(
                    "one address has too many connections over TCP; the newest are closed",
                    address=peer,
                    closed=closed,
                    allowed=self._most,
                    setting="--max-connections-per-address",
                )

    def close_excess(self) -> Tally[str]:
        """Closes what is too much; returns how many of each address that had more than its share.

        Raises OSError. A descriptor takes 1 µs.
        """
        now = time.monotonic()
        self._handshakes = 0
        before, self._known = self._known, {inode: self._seen(fd, inode, now) for fd, inode in own_sockets.sockets()}
        self._shut_down &= self._known.keys()
        connections = [
            each
            for each in self._known.values()
            if isinstance(each, _Connection) and each.inode not in self._shut_down
        ]
        by_peer: defaultdict[Peer, list[_Connection]] = defaultdict(list)
        for each in connections:
            by_peer[each.peer].append(each)
        closed = Tally[str]()
        for peer, theirs in by_peer.items():
            if len(theirs) > self._most:
                theirs.sort(key=lambda each: each.number)
                closed[_text(peer)] = sum(map(_shut_down, theirs[self._most :]))
        if self._callers is not None:
            gone = [
                each for inode, each in before.items() if isinstance(each, _Connection) and inode not in self._known
            ]
            self._limit_strangers(self._callers, connections, gone, now)
        return +closed

    def _limit_strangers(
        self, callers: Callers, connections: list[_Connection], gone: list[_Connection], now: float
    ) -> None:
        failed = Tally(each.peer for each in gone if self._is_strange(callers, each, now))
        for each in gone:
            callers.forget(each.endpoint)
        cut = callers.take_cut()
        for each in connections:
            if each.endpoint in cut:
                _shut_down(each)
                if cut[each.endpoint]:
                    self._failures[each.peer].ban(now)
        strangers = [each for each in connections if self._is_strange(callers, each, now)]
        banned = frozenset(peer for peer, each in self._failures.items() if each.banned_until > now)
        chosen = [each for each in strangers if each.peer in banned]
        rest = [each for each in strangers if each.peer not in banned]
        if len(rest) > self._most_strangers:
            self._crowded_until = now + _FAILURE_SECONDS
            chosen += _least_fair(rest)[: len(rest) - self._most_strangers * 3 // 4]
        _STRANGERS_CLOSED.inc(sum(map(_shut_down, chosen)))
        self._shut_down |= {each.inode for each in chosen}
        if now < self._crowded_until:
            self._tell_bans([peer for peer, number in failed.items() if self._failures[peer].note(number, now)])
        for peer in [peer for peer, each in self._failures.items() if each.is_over(now)]:
            del self._failures[peer]
        self._filter(frozenset(peer for peer, each in self._failures.items() if each.banned_until > now))
        if chosen or cut:
            self._is_trimmed = False
        elif not self._is_trimmed and len(strangers) < _HANDSHAKES_A_CHECK:
            self._is_trimmed = True
            give_back_memory()

    def _is_strange(self, callers: Callers, connection: _Connection, now: float) -> bool:
        """Whether nobody knows yet whose this connection is."""
        return now - connection.since < _STRANGE_SECONDS and connection.endpoint not in callers.known

    def _tell_bans(self, banned: list[Peer]) -> None:
        if banned and self._may_log("bans"):
            log.warning(
                "connections over TCP are opened and nobody calls on them; their addresses get none for a while",
                addresses=[_text(each) for each in banned[:_MOST_NAMED]],
                number=len(banned),
                seconds=_SHORTEST_BAN_SECONDS,
            )

    def _filter(self, banned: frozenset[Peer]) -> None:
        """Has the kernel drop what banned addresses send to open connections. Else they are closed once accepted."""
        if banned == self._filtered:
            return
        self._filtered = banned
        for each in self._known.values():
            if isinstance(each, _Listener):
                with suppress(OSError), closing(socket.socket(fileno=os.dup(each.descriptor))) as listening:
                    attach(listening, [_network(peer) for peer in banned])  # some kernels want CAP_NET_ADMIN for it

    def _seen(self, descriptor: int, inode: int, now: float) -> "_Connection | _Listener | None":
        if inode in self._known:
            return self._known[inode]
        here = own_sockets.local(descriptor)
        if here is None or here.port not in self._ports:
            return None
        if (far := own_sockets.peer(descriptor)) is not None:
            return _Connection(descriptor, inode, next(self._numbers), far.host[:8], far, now)
        return _Listener(descriptor, inode) if own_sockets.is_listening(descriptor) else None


def _least_fair(strangers: Iterable[_Connection]) -> list[_Connection]:
    """Sorts strangers so that those come first which exceed an equal share for each address; then the oldest."""
    ranks = Tally[Peer]()
    ranked: list[tuple[int, int, _Connection]] = []
    for each in sorted(strangers, key=lambda each: -each.number):
        ranked.append((-ranks[each.peer], each.number, each))
        ranks[each.peer] += 1
    return [each for _, _, each in sorted(ranked, key=lambda row: row[:2])]


def _shut_down(connection: _Connection) -> bool:
    """Shuts the connection down, so that gRPC closes it; returns whether it still existed."""
    return own_sockets.shut_down(connection.descriptor, connection.inode)


def _network(peer: Peer) -> IPv4Network | IPv6Network:
    if len(peer) == _IPV4_BYTES:
        return IPv4Network(peer)
    return IPv6Network((peer + bytes(8), 64))


def _text(peer: Peer) -> str:
    return str(_network(peer)).removesuffix("/32")
