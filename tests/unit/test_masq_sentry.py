"""A look every so often, which wakes the event loop only if there is something to be told."""

import asyncio
import errno
import math
import os
import socket
import threading

import pytest

from services.core.errors import Unavailable
from services.masq.firewalls.alarm import Alarm
from services.masq.firewalls.first import first_of
from services.masq.firewalls.sentry import sentry

FOR_EVER = 10.0**12


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
    with sentry(lambda: False, FOR_EVER, lambda: None):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


async def test_blocks_share_a_thread_and_each_is_told_what_it_asked_for() -> None:
    told: list[str] = []
    both = asyncio.Event()

    def tell(name: str) -> None:
        told.append(name)
        if len(told) == 2:
            both.set()

    before = threading.active_count()
    with sentry(lambda: True, 0.0, lambda: tell("often")), sentry(lambda: True, 0.02, lambda: tell("seldom")):
        assert threading.active_count() == before + 1
        await asyncio.wait_for(both.wait(), 5)
    assert told == ["often", "seldom"]
    assert threading.active_count() == before


async def test_a_block_does_not_wait_for_one_that_looks_less_often() -> None:
    news = asyncio.Event()
    with sentry(lambda: False, FOR_EVER, lambda: None), sentry(lambda: True, 0.0, news.set):
        await asyncio.wait_for(news.wait(), 5)


async def test_blocks_that_come_and_go_keep_no_other_one_from_looking() -> None:
    news = asyncio.Event()
    async with asyncio.timeout(5):
        with sentry(lambda: True, 0.05, news.set):
            while not news.is_set():
                with sentry(lambda: False, 0.04, lambda: None):
                    await asyncio.sleep(0)


async def test_a_look_has_ended_when_its_block_has_while_others_go_on() -> None:
    begun: list[int] = []
    ended: list[int] = []
    is_looking = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> bool:
        begun.append(1)
        loop.call_soon_threadsafe(is_looking.set)
        for _ in range(1000):
            os.sched_yield()
        ended.append(1)
        return False

    with sentry(lambda: False, FOR_EVER, lambda: None):
        with sentry(look, 0.0, lambda: None):
            await asyncio.wait_for(is_looking.wait(), 5)
        assert len(ended) == len(begun)


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


def test_an_alarm_that_was_set_can_be_set_to_never() -> None:
    alarm = Alarm(0.25)
    before = alarm._far.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    alarm.set(math.inf)
    assert any(before)
    assert not any(alarm._far.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
    alarm.ring()
    alarm.wait()
    alarm.close()


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("Alarm", OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        ("Thread.start", RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
async def test_a_watch_that_cannot_begin_says_so_and_the_next_one_can(
    monkeypatch: pytest.MonkeyPatch, name: str, error: Exception, why: str
) -> None:
    looks: list[int] = []

    def fail(*_: object) -> None:
        raise error

    def look() -> bool:
        looks.append(1)
        return False

    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(f"services.masq.firewalls.sentry.{name}", fail)
        for _ in range(2):
            with pytest.raises(Unavailable, match=why), sentry(look, 0.0, lambda: None):
                pass
    news = asyncio.Event()
    with sentry(lambda: True, 0.0, news.set):
        await asyncio.wait_for(news.wait(), 5)
    assert threading.active_count() == before
    assert looks == [], "of what could not begin nothing is left"
