"""Listening addresses of a gRPC server: a locked unix socket, or TCP, with TLS unless on loopback."""

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.rpc.socket_paths import lock_of
from flannelette.services.runtime.rpc.transport import PLAIN, Transport

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
