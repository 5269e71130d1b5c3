"""A unit of `Type=notify` has started when it is ready, or after a while in any case: no boot waits for ever."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flannelette.services.runtime.process.start_notice import StartNotice, notify_status

Told = Callable[[], list[str]]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What systemd has been told so far."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)

        def read() -> list[str]:
            found = list[str]()
            while True:
                try:
                    found.append(systemd.recv(4096).decode())
                except BlockingIOError:
                    return found

        yield read


async def test_a_service_that_is_ready_says_so_once(told: Told) -> None:
    notice = StartNotice(0.01)
    notice.give()
    notice.give()
    await asyncio.sleep(0.02)
    assert told() == ["READY=1"]


async def test_a_service_that_does_not_become_ready_holds_a_start_up_for_a_while_only(told: Told) -> None:
    notice = StartNotice(0.01)
    assert told() == []
    await asyncio.sleep(0.05)
    assert told() == ["READY=1"]
    notice.give()
    assert told() == []


def test_the_status_of_the_unit_says_what_the_service_waits_for_in_one_line(told: Told) -> None:
    notify_status(["etcd does not answer", "no lease\nREADY=1"])
    notify_status([])
    assert told() == ["STATUS=not ready: etcd does not answer; no lease READY=1", "STATUS=ready"]
