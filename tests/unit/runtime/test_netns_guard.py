"""Which network namespace a service is in, and in which it belongs."""

import asyncio
import socket
from pathlib import Path

import pytest

from flannelette.services.runtime.os.files import Watch
from flannelette.services.runtime.process import process as whereabouts
from flannelette.services.runtime.process.process import this_namespace, until_deleted, until_moved


def test_a_namespace_is_written_as_readlink_prints_it() -> None:
    assert this_namespace().startswith("net:[")


@pytest.mark.parametrize(
    "text", [None, "", "\n", f"{this_namespace()}\n"], ids=["no file", "empty", "a line", "here"]
)
async def test_it_waits_while_nothing_speaks_against_where_it_is(text: str | None, tmp_path: Path) -> None:
    record = tmp_path / "namespace"
    if text is not None:
        record.write_text(text)
    task = asyncio.create_task(until_moved(record, 0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    record.write_text("net:[1]\n")
    assert "belongs in net:[1]" in await asyncio.wait_for(task, 5)


@pytest.mark.parametrize("has_inotify", [True, False])
async def test_it_waits_until_the_socket_is_deleted(
    has_inotify: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_inotify:
        monkeypatch.setattr(Watch, "open", lambda watch: False)
        monkeypatch.setattr(whereabouts, "_REFRESH_SECONDS", 0)
    path = tmp_path / "lease.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    task = asyncio.create_task(until_deleted(path))
    (tmp_path / "another").touch()
    (tmp_path / "another").unlink()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    path.unlink()
    assert f"the socket {path} was deleted" in await asyncio.wait_for(task, 60)
