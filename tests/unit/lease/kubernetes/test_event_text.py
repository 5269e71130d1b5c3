"""The text of Kubernetes Events: what comes from outside is on one line there, and can be seen."""

import asyncio
from contextlib import suppress
from typing import Any

from flannelette.services.core.conditions import found
from flannelette.services.lease.stores.kube.store import NodeEvents
from flannelette.services.lease.stores.kube.values import Timing


class Written:
    """An API server that keeps what is written."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[str] = asyncio.Queue()

    async def patch_event(self, _name: str, news: dict[str, Any]) -> dict[str, Any]:
        await self.messages.put(news["message"])
        return {"count": 1}


async def test_a_name_forges_no_line_of_an_event() -> None:
    written = Written()
    events = NodeEvents(written, Timing())  # type: ignore[arg-type]  # what an Event needs of the client
    events.note("h1", found("lease.refused", reason="the address is of h2\n  Normal  Ready\u202e\x1b[2J"))
    task = asyncio.create_task(events.run())
    async with asyncio.timeout(10):
        message = await written.messages.get()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert message == r"the address is of h2\n  Normal  Ready\u202e\u001b[2J"
