"""One process of a service in a network namespace, where a second one would undo what the first one does.

Its name is held by an abstract unix socket: scoped to the network namespace, and gone with the process, however that
ends (unix(7)).
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from services.core.errors import Misconfigured

_LOOK_SECONDS: Final = 0.1


@contextmanager
def sole(service: str, advice: str) -> Iterator[None]:
    """Holds the namespace while the block runs. Raises Misconfigured, with this advice, when another one has it."""
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
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0flannelette-{service}")
    except OSError:
        holder.close()
        return None
    return holder


def _refused(service: str, advice: str) -> socket.socket:
    raise Misconfigured(f"another {service} runs in this network namespace: {advice}")
