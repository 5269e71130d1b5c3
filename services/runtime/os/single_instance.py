"""A lock that lets one process of a service run in a network namespace: two would undo each other's changes.

The lock is an abstract unix socket. The kernel scopes it to the network namespace and frees it with the process,
however that ends (unix(7)).
"""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Final

from services.core.errors import Misconfigured

_POLL_SECONDS: Final = 0.1


@contextmanager
def single_instance(service: str, advice: str) -> Iterator[None]:
    """Holds the lock while the block runs.

    Raises Misconfigured, with this advice, if another process holds the lock, and if the lock cannot be made.
    """
    with _held(service) or _refused(service, advice):
        yield


@asynccontextmanager
async def single_instance_within(service: str, advice: str, patience: float) -> AsyncIterator[None]:
    """The same, but waits up to `patience` seconds for a previous process that is about to end."""
    until = time.monotonic() + patience
    while (holder := _held(service)) is None and time.monotonic() < until:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(_POLL_SECONDS)
    with holder or _refused(service, advice):
        yield


def _held(service: str) -> socket.socket | None:
    with ExitStack() as opened:
        try:
            holder = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            holder.bind(f"\0flannelette-{service}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise Misconfigured(
                f"cannot bind the abstract unix socket @flannelette-{service}, which excludes a second {service}: "
                f"{error.strerror}; check security profiles (AppArmor, SELinux, seccomp) and limits"
            ) from None
        opened.pop_all()
        return holder


def _refused(service: str, advice: str) -> socket.socket:
    raise Misconfigured(f"another {service} runs in this network namespace: {advice}")
