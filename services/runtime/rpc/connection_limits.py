"""Limits on connections over TCP: for each client address, and so that some descriptors are always left.

gRPC ends a handshake that takes too long and limits each listener by itself, so that a unix socket does not wait for
TCP. It has no limit for a client address, and does not report who connects. So the process lists its own sockets, and
shuts down the newest ones of an address that has too many: no proxy is needed in the path of the data. See ADR 28.
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
"""Descriptors for files, for the store, for HTTP, for a client of the unix socket."""
_MOST_DESCRIPTORS: Final = 1 << 20
"""The kernel's own limit (fs.nr_open), unless it was raised."""
_LOOK_SECONDS: Final = 1.0
_HANDSHAKE_MS: Final = 5_000
"""gRPC's own is two minutes. Ours take milliseconds; a client that is cut off here comes again."""
_OURS: Final = Path("/proc/self/fd")

_CLOSED = Counter("flannelette_connections_closed", "Connections over TCP closed because their address had too many")


def raise_descriptor_limit() -> None:
    """As far as the process may: what a shell or an init gives, 1,024, is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # then it stays as it is
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
    """Those among the addresses that a service listens on."""
    return frozenset(host_and_port(each)[1] for each in addresses if not each.startswith("unix:"))


@dataclass(frozen=True, slots=True)
class _Connection:
    """One that was accepted on one of the ports."""

    descriptor: int
    inode: int
    number: int
    """In the order in which they were seen."""
    peer: str


class ConnectionLimiter:
    """Closes TCP connections to these ports beyond `most` from one address. Raises Misconfigured when made."""

    def __init__(self, ports: frozenset[int], most: int) -> None:
        if most < 1:
            raise Misconfigured(f"--max-connections-per-address is {most}: use 1 or more")
        self._ports = ports
        self._most = most
        self._known: dict[int, _Connection | None] = {}
        """By inode, which no other socket has while this one is open; None: of no concern."""
        self._numbers = count()
        self._may_log = LogLimiter()

    async def run(self) -> None:
        """Looks once a second, for ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for peer, closed in (await asyncio.to_thread(self.look)).items():
                _CLOSED.inc(closed)
                if self._may_log(peer):
                    log.warning(
                        "one address has too many connections over TCP; the newest are closed",
                        address=peer,
                        closed=closed,
                        allowed=self._most,
                        setting="--max-connections-per-address",
                    )

    def look(self) -> Tally[str]:
        """Closes what is too much; how many of which address. Costs a microsecond for each descriptor."""
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
                peer = _share_of(connection.getpeername()[0])  # a listening one has none
                return _Connection(descriptor, inode, next(self._numbers), peer)
        return None


def _sockets() -> Iterator[tuple[int, int]]:
    """Descriptor and inode of each that this process has open."""
    for name in os.listdir(_OURS):  # noqa: PTH208 - a Path for each would take ten times as long
        with suppress(OSError):  # that of this listing itself
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                yield int(name), status.st_ino


@contextmanager
def _copied(descriptor: int, inode: int) -> Iterator[socket.socket]:
    """The same socket by another descriptor, so that ours to close is not gRPC's. Raises OSError: it is gone."""
    with closing(socket.socket(fileno=os.dup(descriptor))) as copy:
        if os.fstat(copy.fileno()).st_ino != inode:
            raise OSError("another socket has its descriptor by now")
        yield copy


def _shut_down(connection: _Connection) -> bool:
    """As if its client had gone: gRPC closes it. Whether it was still there."""
    with suppress(OSError), _copied(connection.descriptor, connection.inode) as copy:
        copy.shutdown(socket.SHUT_RDWR)
        return True
    return False


def _share_of(host: str) -> str:
    """Of what a client is counted by: its IPv4 address, or the /64 that an IPv6 host has to itself."""
    address = ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((int(address) >> 64 << 64, 64)))
