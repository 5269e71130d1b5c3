"""Records for which network a task works: its log lines have the key `network`, and its metrics the label."""

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from flannelette.services.runtime.telemetry.logs import log_network

DEFAULT: Final = "default"
"""As a name: the network that has the files, sockets and marks of a network without a name."""
_CURRENT: Final = ContextVar("network", default="")


def current_network() -> str:
    """Returns the network's name; empty if the service has one network, without a name."""
    return _CURRENT.get()


def enter_network(name: str) -> None:
    """Makes this task, and the tasks that it makes, work for a network."""
    _CURRENT.set(name)
    log_network(name)


@contextmanager
def in_network(name: str) -> Iterator[None]:
    """The block works for a network."""
    before = current_network()
    enter_network(name)
    try:
        yield
    finally:
        enter_network(before)


def job_of(name: str, job: Callable[[], Awaitable[None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """The job, working for a network."""

    async def run() -> None:
        enter_network(name)
        await job()

    return run
