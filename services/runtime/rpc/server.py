"""The gRPC server of every service: where it listens, how much it takes, reflection, health and errors.

What is limited while the server runs is in connection_limits.py.
"""

import fcntl
import os
import resource
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as grpc_reflection

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.networks import lock_of
from flannelette.services.runtime.os.processes import memory_limit
from flannelette.services.runtime.rpc.authorization import Authorizer
from flannelette.services.runtime.rpc.interceptor import ErrorInterceptor
from flannelette.services.runtime.rpc.transport import PLAIN, Transport, host_and_port

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
