"""A stream whose client takes nothing any more is ended, and no other."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from services.lease.stalled import Stalled
from tests.virtual_time import run_virtually


async def sent(stalled: Stalled, pause: float, closed: list[str]) -> int:
    """A stream whose client takes a message at a time, with a pause in between; how many it took."""

    async def messages() -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(10):
                yield b"message"
        finally:
            closed.append("closed")

    taken = 0
    async for _ in stalled.watched(messages()):
        await asyncio.sleep(pause)
        taken += 1
    return taken


@pytest.mark.parametrize(("pause", "is_ended"), [(0.0, False), (20.0, False), (3600.0, True)])
def test_who_takes_nothing_for_too_long_is_ended(pause: float, is_ended: bool) -> None:
    async def main() -> None:
        stalled, closed = Stalled(seconds=28.0), list[str]()
        watchdog = asyncio.create_task(stalled.run())
        stream = asyncio.create_task(sent(stalled, pause, closed))
        await asyncio.wait([stream])
        assert stream.cancelled() is is_ended
        assert is_ended or stream.result() == 10
        await asyncio.sleep(0)
        if is_ended:
            assert asyncio.get_running_loop().time() < 28.0 + 2 * 7.0
        assert not stalled._since
        watchdog.cancel()

    run_virtually(main())


def test_a_stream_that_waits_for_news_is_left_alone() -> None:
    async def main() -> None:
        stalled = Stalled(seconds=28.0)

        async def quiet() -> AsyncGenerator[bytes, None]:
            yield b"message"
            await asyncio.sleep(86_400)
            yield b"message"

        async def take() -> int:
            return len([message async for message in stalled.watched(quiet())])

        watchdog = asyncio.create_task(stalled.run())
        assert await take() == 2
        watchdog.cancel()

    run_virtually(main())
