"""A file that somebody closes or removes is noticed without a poll."""

import asyncio
from pathlib import Path

import pytest

from flannelette.services.runtime.os.files import CLOSED, REMOVED, Watch


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
    watch = Watch(file.path, CLOSED)
    assert not watch.open()
    await watch.next()  # nothing to wait for
    file.make()
    assert watch.open()
    assert watch.open()
    watch.close()


async def test_every_closing_is_told_also_one_before_the_wait(file: File) -> None:
    file.make()
    watch = Watch(file.path, CLOSED)
    assert watch.open()
    file.read()
    await asyncio.wait_for(watch.next(), 5)
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    file.read()
    await asyncio.wait_for(waiting, 5)
    watch.close()


async def test_a_file_that_is_removed_is_watched_again_when_it_is_back(file: File) -> None:
    file.make()
    watch = Watch(file.path, CLOSED)
    assert watch.open()
    file.remove()
    await asyncio.wait_for(watch.next(), 5)
    assert not watch.open()
    file.make()
    assert watch.open()
    watch.close()


async def test_a_wait_that_is_given_up_loses_nothing(file: File) -> None:
    file.make()
    watch = Watch(file.path, CLOSED)
    assert watch.open()
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    file.read()
    await asyncio.wait_for(watch.next(), 5)
    watch.close()


async def test_of_a_directory_every_file_that_goes_is_told_and_its_own_end(file: File) -> None:
    file.make()
    watch = Watch(file.path.parent, REMOVED)
    assert watch.open()
    file.read()
    waiting = asyncio.create_task(watch.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    file.remove()
    await asyncio.wait_for(waiting, 5)
    file.path.parent.rmdir()
    await asyncio.wait_for(watch.next(), 5)
    assert not watch.open()
    file.path.parent.mkdir()
    assert watch.open()
    watch.close()
