"""A lock that lets one process of a service run in a network namespace: two would undo each other's changes.

The lock is a name that only a process with the right to change the namespace can hold: see names.py.
"""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.os.names import HeldName, rightful

_POLL_SECONDS: Final = 0.1


@contextmanager
def single_instance(service: str, advice: str) -> Iterator[None]:
    """Holds the lock while the block runs.

    Raises Misconfigured, with this advice, if another process holds the lock, and if the lock cannot be made.
    """
    with closing(_held(service) or _refused(service, advice)):
        yield


@asynccontextmanager
async def single_instance_within(service: str, advice: str, patience: float) -> AsyncIterator[None]:
    """The same, but waits up to `patience` seconds for a previous process that is about to end."""
    until = time.monotonic() + patience
    while (holder := _held(service)) is None and time.monotonic() < until:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(_POLL_SECONDS)
    with closing(holder or _refused(service, advice)):
        yield


def lock_name(service: str) -> str:
    """What the lock of a service is called, `flannelette-masq-blue`; those of a service's networks begin alike."""
    return f"flannelette-{service}"


def _held(service: str) -> HeldName | None:
    """None: another process holds the lock. Each holds its name before it looks for others, so that no two stay."""
    name = lock_name(service)
    try:
        holder = HeldName(name, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise Misconfigured(
            f"cannot bind the abstract unix socket @{name}, which excludes a second {service}: "
            f"{error.strerror}; check security profiles (AppArmor, SELinux, seccomp) and limits"
        ) from None
    if rightful(name, but=holder.inode):
        holder.close()
        return None
    return holder


def _refused(service: str, advice: str) -> HeldName:
    raise Misconfigured(f"another {service} runs in this network namespace: {advice}")
