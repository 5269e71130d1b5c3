"""What limits the connections of a gRPC server as it starts; a service on unix sockets alone needs no more of it.

What is limited while the server runs, is in connection_limits.py.
"""

import resource
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.os import memory
from flannelette.services.runtime.rpc.transport import host_and_port

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
    return max(memory.limit() * 3 // 4 // _BYTES_A_CONNECTION, 1)


def tcp_ports(addresses: Iterable[str]) -> frozenset[int]:
    """The TCP ports among the listening addresses."""
    return frozenset(host_and_port(each)[1] for each in addresses if not each.startswith("unix:"))
