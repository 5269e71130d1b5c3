"""Work that has begun is carried out whole, whoever leaves."""

import asyncio
import gc
import weakref

import pytest

from flannelette.services.runtime.process.exclusive import Exclusive


async def test_a_caller_who_leaves_does_not_interrupt_what_has_begun_and_the_next_waits_for_it() -> None:
    turn, begun, go, done = Exclusive(), asyncio.Event(), asyncio.Event(), list[str]()

    async def work() -> None:
        begun.set()
        await go.wait()
        done.append("ended")

    caller = asyncio.create_task(turn.run(work))
    next_one = asyncio.create_task(turn.acquire())
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not next_one.done()
    go.set()
    await next_one
    assert done == ["ended"]


async def test_what_has_begun_is_not_lost_when_nobody_but_the_turn_knows_of_it() -> None:
    turn, begun, done = Exclusive(), asyncio.Event(), list[str]()
    waited_for: list[weakref.ref[asyncio.Future[None]]] = []

    async def work() -> None:
        future = asyncio.get_running_loop().create_future()
        waited_for.append(weakref.ref(future))
        begun.set()
        await future
        done.append("ended")

    caller = asyncio.create_task(turn.run(work))
    await begun.wait()
    caller.cancel()
    await asyncio.wait([caller])
    del caller
    gc.collect()
    future = waited_for[0]()
    assert future is not None
    future.set_result(None)
    await asyncio.wait_for(turn.acquire(), 1)
    assert done == ["ended"]


async def test_a_turn_that_does_not_end_is_not_waited_for_longer_than_said() -> None:
    turn = Exclusive()
    async with turn:
        assert not await turn.end(0.01)
    assert await turn.end(0)
    assert turn.locked(), "nothing begins any more"


async def test_what_has_not_begun_when_its_caller_leaves_never_does() -> None:
    turn = Exclusive()

    async def work() -> None:
        raise AssertionError

    async with turn:
        caller = asyncio.create_task(turn.run(work))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    assert not turn.locked()


async def test_its_answer_and_its_error_are_the_callers_and_it_ends_its_turn() -> None:
    turn = Exclusive()

    async def answer() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("no")

    assert await turn.run(answer) == 7
    with pytest.raises(ValueError, match="no"):
        await turn.run(fail)
    await asyncio.wait_for(turn.acquire(), 1)
