"""Limits on TCP connections: per client address, and in total, so that some file descriptors are always free.

gRPC limits the time of a handshake and the connections of each listener, so that TCP does not block a unix socket.
gRPC has no limit per client address, and does not report connections. So the process lists its own sockets, and shuts
down the newest ones of an address that has too many; no proxy is needed in the data path. See ADR 28.
"""

import asyncio
import os
import resource
import socket
import stat
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from itertools import count
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured
from services.runtime.rpc.transport import host_and_port
from services.runtime.telemetry.logs import LogLimiter, get_logger
from services.runtime.telemetry.metrics import Counter

log = get_logger()

_RESERVE: Final = 256
"""Descriptors kept free for files, the store, HTTP and clients of the unix socket."""
_MOST_DESCRIPTORS: Final = 1 << 20
"""The kernel's own limit (fs.nr_open), unless it was raised."""
_CHECK_SECONDS: Final = 1.0
_HANDSHAKE_MS: Final = 5_000
"""gRPC's default is two minutes. A handshake takes milliseconds; a client that is cut off reconnects."""
_DESCRIPTORS: Final = Path("/proc/self/fd")

_CLOSED = Counter("flannelette_connections_closed", "Connections over TCP closed because their address had too many")


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
    room = max(limit - _RESERVE, limit // 2) // listeners
    return (
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", max(min(most, room), 1)),
    )


def tcp_ports(addresses: Iterable[str]) -> frozenset[int]:
    """The TCP ports among the listening addresses."""
    return frozenset(host_and_port(each)[1] for each in addresses if not each.startswith("unix:"))


@dataclass(frozen=True, slots=True)
class _Connection:
    """An accepted connection to one of the ports."""

    descriptor: int
    inode: int
    number: int
    """Order of discovery."""
    peer: str


class ConnectionLimiter:
    """Closes TCP connections to these ports beyond `most` from one address. Raises Misconfigured when made."""

    def __init__(self, ports: frozenset[int], most: int) -> None:
        if most < 1:
            raise Misconfigured(f"--max-connections-per-address is {most}: use 1 or more")
        self._ports = ports
        self._most = most
        self._known: dict[int, _Connection | None] = {}
        """By inode, which is unique while the socket is open; None: not a connection to one of the ports."""
        self._numbers = count()
        self._may_log = LogLimiter()

    async def run(self) -> None:
        """Checks once a second until cancelled. A check that gets no descriptor of its own is left out."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                excess = await asyncio.to_thread(self.close_excess)
            except OSError as error:
                if self._may_log(""):
                    log.warning("connections over TCP cannot be counted; tried again every second", reason=str(error))
                continue
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
        """Closes excess connections; returns how many of each address, or raises OSError. A descriptor takes 1 µs."""
        self._known = {inode: self._connection(fd, inode) for fd, inode in _sockets()}
        by_peer: defaultdict[str, list[_Connection]] = defaultdict(list)
        for each in self._known.values():
            if each is not None:
                by_peer[each.peer].append(each)
        closed = Tally[str]()
        for peer, connections in by_peer.items():
            if len(connections) > self._most:
                connections.sort(key=lambda each: each.number)
                closed[peer] = sum(map(_shut_down, connections[self._most :]))
        return +closed

    def _connection(self, descriptor: int, inode: int) -> _Connection | None:
        if inode in self._known:
            return self._known[inode]
        with suppress(OSError), _copied(descriptor, inode) as connection:
            is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
            if is_tcp and connection.getsockname()[1] in self._ports:
                peer = _counted_as(connection.getpeername()[0])  # a listening socket has none
                return _Connection(descriptor, inode, next(self._numbers), peer)
        return None


def _sockets() -> Iterator[tuple[int, int]]:
    """Descriptor and inode of each open socket of this process."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - a Path for each takes ten times as long
        with suppress(OSError):  # the descriptor of this listing itself
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                yield int(name), status.st_ino


@contextmanager
def _copied(descriptor: int, inode: int) -> Iterator[socket.socket]:
    """The socket under a descriptor of our own, which can be closed without closing gRPC's. Raises OSError: gone."""
    with closing(socket.socket(fileno=os.dup(descriptor))) as copy:
        if os.fstat(copy.fileno()).st_ino != inode:
            raise OSError("the descriptor belongs to another socket now")
        yield copy


def _shut_down(connection: _Connection) -> bool:
    """Shuts the connection down, so that gRPC closes it; returns whether it still existed."""
    with suppress(OSError), _copied(connection.descriptor, connection.inode) as copy:
        copy.shutdown(socket.SHUT_RDWR)
        return True
    return False


def _counted_as(host: str) -> str:
    """What a client is counted as: the IPv4 address, or the /64 of an IPv6 address."""
    address = ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((int(address) >> 64 << 64, 64)))
