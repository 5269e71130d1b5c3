"""A look every so often, which wakes the event loop only if there is something to be told."""

import asyncio
import threading

import pytest

from services.core.errors import Unavailable
from services.masq.firewalls.first import first_of
from services.masq.firewalls.sentry import sentry


async def test_it_tells_once_in_the_loop_and_looks_elsewhere() -> None:
    looks: list[int] = []
    told: list[int] = []
    news = asyncio.Event()

    def look() -> bool:
        looks.append(threading.get_ident())
        return len(looks) == 3

    def tell() -> None:
        told.append(threading.get_ident())
        news.set()

    with sentry(look, 0.0, tell):
        await asyncio.wait_for(news.wait(), 5)
    assert len(looks) == 3
    assert told == [threading.get_ident()]
    assert threading.get_ident() not in looks


@pytest.mark.parametrize("error", [Unavailable("the kernel does not tell"), OSError("no memory"), RuntimeError("?")])
async def test_a_look_that_fails_for_whatever_reason_is_told_as_well(error: Exception) -> None:
    news = asyncio.Event()

    def look() -> bool:
        raise error

    with sentry(look, 0.0, news.set):
        await asyncio.wait_for(news.wait(), 5)


async def test_behind_the_block_nobody_looks_any_more() -> None:
    before = threading.active_count()
    with sentry(lambda: False, 10.0**12, lambda: None):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


async def test_the_first_of_two_ends_the_other() -> None:
    ended = asyncio.Event()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await first_of(long(), asyncio.sleep(0))
    assert ended.is_set()


async def test_what_the_first_raises_is_raised() -> None:
    async def fail() -> None:
        raise Unavailable("it is gone")

    with pytest.raises(Unavailable, match="it is gone"):
        await first_of(asyncio.Event().wait(), fail())
