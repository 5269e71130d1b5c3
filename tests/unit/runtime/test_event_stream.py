"""What one call of WatchEvents leaves behind."""

import asyncio
from contextlib import aclosing, suppress

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.runtime.events import Journal, Reading, watch


async def test_a_follower_that_leaves_while_nothing_happens_leaves_no_task_behind() -> None:
    journal, stopping, before = Journal(), asyncio.Event(), asyncio.all_tasks()
    for _ in range(10):
        reading = Reading(journal, pb.WatchEventsRequest(), "", lambda entry: pb.WatchEventsResponse())
        async with aclosing(watch(reading, stopping, follows=True, end="")) as messages:  # type: ignore[type-var]
            call = asyncio.ensure_future(anext(messages))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
