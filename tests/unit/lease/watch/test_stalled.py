"""A stream whose client takes nothing any more is ended, and no other."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from flannelette.services.lease.watch.streams import STALLED_SECONDS, end_if_stalled
from tests.virtual_time import run_virtually


async def sent(pause: float, closed: list[str]) -> int:
    """A stream whose client takes a message at a time, with a pause in between; how many it took."""

    async def messages() -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(10):
                yield b"message"
        finally:
            closed.append("closed")

    taken = 0
    async for _ in end_if_stalled(messages()):
        await asyncio.sleep(pause)
        taken += 1
    return taken


@pytest.mark.parametrize(("pause", "is_ended"), [(0.0, False), (20.0, False), (3600.0, True)])
def test_who_takes_nothing_for_too_long_is_ended(pause: float, is_ended: bool) -> None:
    async def main() -> None:
        closed = list[str]()
        stream = asyncio.create_task(sent(pause, closed))
        await asyncio.wait([stream])
        assert stream.cancelled() is is_ended
        assert is_ended or stream.result() == 10
        if is_ended:
            assert asyncio.get_running_loop().time() <= STALLED_SECONDS

    run_virtually(main())


def test_a_stream_that_waits_for_news_is_left_alone() -> None:
    async def main() -> None:
        async def quiet() -> AsyncGenerator[bytes, None]:
            yield b"message"
            await asyncio.sleep(86_400)
            yield b"message"

        assert len([message async for message in end_if_stalled(quiet())]) == 2

    run_virtually(main())
