"""The command that carries a connection: what it said when it failed."""

import socket
import threading
import time

import pytest

from flannelette.services.ctl.connect.dial import Dialer


def test_why_a_command_failed_is_known_when_its_connection_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that is so busy that the command ends before the thread that started it goes on."""
    start = threading.Thread.start

    def start_slowly(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.endswith("(_run)"):
            time.sleep(0.3)

    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    dialer = Dialer(["sh", "-c", "echo denied >&2; exit 255"], [], "lease")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(dialer.path))
        assert connection.recv(1) == b""
    assert dialer.failure().endswith("`: denied")
