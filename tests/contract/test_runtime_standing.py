"""A unix socket that was deleted is served again, whatever else is wrong for a while."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from services.core.errors import Misconfigured
from services.runtime import standing
from services.runtime.inotify import Watch
from services.runtime.listen import bind_path, lock_of, locked
from services.runtime.server import Server
from services.runtime.standing import keep_standing
from tests.lease_service import eventually


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "_SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(standing, "_RETRY_SECONDS", 0.01)


@asynccontextmanager
async def kept(path: Path) -> AsyncIterator[None]:
    """A server whose socket is kept; at the end its lock is still held when nobody keeps it any more."""
    server = Server({})
    with ExitStack() as held, locked(path):
        bind_path(server.grpc, path)
        await server.start()
        keeping = asyncio.create_task(keep_standing(server, path, held))
        await asyncio.sleep(0)  # it has looked at what there is
        try:
            yield
            assert not keeping.done()
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
            is_taken = taken(path)
            await server.stop()
        assert is_taken
    assert not taken(path)


def taken(path: Path) -> bool:
    try:
        with locked(path):
            return False
    except Misconfigured:
        return True


def refuse(*_: object, **__: object) -> NoReturn:
    raise PermissionError(errno.EACCES, "Permission denied")


async def test_a_directory_that_must_not_be_looked_at_for_a_while_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, looked = tmp_path / "run" / "x.sock", list[str]()
    async with kept(path):

        def look(self: Path, **_: object) -> NoReturn:
            looked.append(str(self))
            refuse()

        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", look)
            path.unlink()
            await eventually(lambda: len(looked) > 20)
        await eventually(path.is_socket)


async def test_a_lock_that_was_made_again_is_held_until_the_server_has_stopped(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    async with kept(path):
        for _ in range(2):
            lock_of(path).unlink()
            path.unlink()
            await eventually(path.is_socket)
            assert taken(path)


async def test_what_is_wrong_with_a_lock_is_not_said_of_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with capture_logs() as logs:
        async with kept(path):
            lock_of(path).unlink()
            with locked(path):
                await eventually(lambda: len(logs) == 1)
                path.unlink()
                await eventually(lambda: len(logs) == 2)
            await eventually(path.is_socket)
    assert [entry["event"] for entry in logs] == [
        "the lock of the socket was deleted and cannot be held again; trying on",
        "the socket was deleted and cannot be served again; trying on",
        "the socket was deleted; serving it again",
    ]


async def test_a_directory_is_watched_anew_only_when_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, closed = list[Watch](), list[Watch]()

    class Told(Watch):
        def open(self) -> bool:
            opened.append(self)
            return super().open()

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr(standing, "Watch", Told)
    path = tmp_path / "run" / "x.sock"
    async with kept(path):
        ends = len(closed)
        for _ in range(3):
            looks = len(opened)
            (path.parent / "other").touch()
            (path.parent / "other").unlink()
            await eventually(lambda: len(opened) > looks)  # noqa: B023 - it has ended before the next
        assert len(closed) == ends
        path.parent.rename(tmp_path / "before")
        await eventually(path.is_socket)
        assert len(closed) > ends
        path.unlink()
        await eventually(path.is_socket)


async def test_a_directory_whose_owner_must_not_be_changed_gets_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run" / "x.sock"
    path.parent.mkdir()
    path.parent.chmod(0o2771)
    monkeypatch.setattr(os, "chown", refuse)
    async with kept(path):
        shutil.rmtree(path.parent)
        await eventually(path.is_socket)
        assert path.parent.stat().st_mode & 0o7777 == 0o2771


async def test_a_directory_that_another_service_has_made_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "x.sock"
    async with kept(path):
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        path.parent.chmod(0o751)
        await eventually(path.is_socket)
        assert path.parent.stat().st_mode & 0o7777 == 0o751
