"""One process of a service in a network namespace, where a second one would undo what the first one does.

Its name is held by an abstract unix socket: scoped to the network namespace, and gone with the process, however that
ends (unix(7)).
"""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Final

from services.core.errors import Misconfigured

_LOOK_SECONDS: Final = 0.1


@contextmanager
def sole(service: str, advice: str) -> Iterator[None]:
    """Holds the namespace while the block runs.

    Raises Misconfigured, with this advice, when another one has it; and when nobody could have it.
    """
    with _held(service) or _refused(service, advice):
        yield


@asynccontextmanager
async def sole_in_time(service: str, advice: str, patience: float) -> AsyncIterator[None]:
    """The same, for a service whose process before may still be about to end: `patience` seconds at most."""
    until = time.monotonic() + patience
    while (holder := _held(service)) is None and time.monotonic() < until:  # noqa: ASYNC110 - nobody tells us
        await asyncio.sleep(_LOOK_SECONDS)
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
                f"cannot have the abstract unix socket @flannelette-{service}, which keeps a second {service} away: "
                f"{error.strerror}; see what forbids it, a security profile (AppArmor, SELinux, seccomp) or a limit"
            ) from None
        opened.pop_all()
        return holder


def _refused(service: str, advice: str) -> socket.socket:
    raise Misconfigured(f"another {service} runs in this network namespace: {advice}")
