"""Carrying a plan out: in batches as large as the provider takes, by threads; what a failure means for the rest."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from threading import Thread
from typing import TypeVar

from flannelette.services.cloud.routes import Change, Cloud, CloudError, Failure, Key, Verb
from flannelette.services.runtime.telemetry.metrics import Counter

_Result = TypeVar("_Result")


async def in_thread(call: Callable[[], _Result]) -> _Result:
    """What the call returns or raises. One that hangs does not delay the end of the process, as to_thread's would."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_Result] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(result.set_result, call())
        except Exception as error:
            settle = partial(result.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: result.cancelled() or settle())

    Thread(target=run, daemon=True).start()
    return await result


_ERRORS = Counter("flannelette_cloud_errors", "Calls to the cloud that failed, by what follows", ["trouble"])


@dataclass
class BatchResult:
    """What was done; filled while it is."""

    made: list[Change] = field(default_factory=list)
    errors: dict[Key, str] = field(default_factory=dict)
    """By key of the route."""
    refusals: dict[Failure, str] = field(default_factory=dict)
    """What the provider said, by what follows."""
    wait: CloudError | None = None
    """Why nothing more can be done now."""


async def carry_out(cloud: Cloud, changes: Sequence[Change], done: BatchResult) -> None:
    """Each change, in this order. A batch that is refused as a whole is tried again one by one."""
    blocked: dict[tuple[Verb, str], str] = {}
    queue = deque(_batches(changes, cloud.batch))
    while queue and done.wait is None:
        some = queue.popleft()
        verb, table = some[0].verb, some[0].route.table
        if said := blocked.get((verb, table)):
            done.errors |= {change.route.key: said for change in some}
            continue
        try:
            failed = dict(await in_thread(partial(cloud.apply, some)))
        except CloudError as error:
            if len(some) > 1 and error.trouble not in (Failure.WAIT, Failure.DENIED):
                queue.extendleft([change] for change in reversed(some))
                continue
            failed = dict.fromkeys(some, error)
        if verb is Verb.DELETE:  # then another program was faster, and it is gone
            failed = {change: reason for change, reason in failed.items() if reason.trouble is not Failure.CHANGED}
        done.made += [change for change in some if change not in failed]
        for change, reason in failed.items():
            _ERRORS.labels(reason.trouble.name.lower()).inc()
            done.errors[change.route.key] = done.refusals[reason.trouble] = str(reason)
            if reason.trouble is Failure.WAIT:
                done.wait = reason
            elif reason.trouble in (Failure.FULL, Failure.DENIED) and verb is not Verb.FORWARD:
                blocked[verb, table] = str(reason)  # rights may be of one table, or one instance


def _batches(changes: Sequence[Change], most: int) -> Iterator[list[Change]]:
    """Changes of one verb in one table, at most so many."""
    for _, same in groupby(changes, lambda change: (change.verb, change.route.table)):
        found = list(same)
        for first in range(0, len(found), most):
            yield found[first : first + most]
