"""Blocking calls of a provider's SDK, each in a thread of its own."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import TypeVar

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
