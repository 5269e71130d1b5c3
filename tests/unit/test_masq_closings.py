"""A file that somebody closes is noticed without a poll, until it is gone."""

import asyncio
from pathlib import Path

import pytest

from services.masq.firewalls.closings import Closings


class File:
    """What others do with it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        self.path.touch()

    def read(self) -> None:
        self.path.read_bytes()

    def remove(self) -> None:
        self.path.unlink()


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "lock")


async def test_a_file_that_is_not_there_is_not_watched_until_it_is(file: File) -> None:
    closings = Closings(file.path)
    assert not closings.open()
    await closings.next()  # nothing to wait for
    file.make()
    assert closings.open()
    assert closings.open()
    closings.close()


async def test_every_closing_is_told_also_one_before_the_wait(file: File) -> None:
    file.make()
    closings = Closings(file.path)
    assert closings.open()
    file.read()
    await asyncio.wait_for(closings.next(), 5)
    waiting = asyncio.create_task(closings.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    file.read()
    await asyncio.wait_for(waiting, 5)
    closings.close()


async def test_a_file_that_is_removed_is_watched_again_when_it_is_back(file: File) -> None:
    file.make()
    closings = Closings(file.path)
    assert closings.open()
    file.remove()
    await asyncio.wait_for(closings.next(), 5)
    assert not closings.open()
    file.make()
    assert closings.open()
    closings.close()


async def test_a_wait_that_is_given_up_loses_nothing(file: File) -> None:
    file.make()
    closings = Closings(file.path)
    assert closings.open()
    waiting = asyncio.create_task(closings.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    file.read()
    await asyncio.wait_for(closings.next(), 5)
    closings.close()
