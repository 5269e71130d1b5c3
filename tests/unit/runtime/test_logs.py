"""What goes into the log, and how often."""

import subprocess
import sys
from pathlib import Path

import pytest

from flannelette.services.runtime.telemetry.logs import LogLimiter


def test_each_thing_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    is_due = LogLimiter()
    assert [is_due(what) for what in ("a", "a", "b", "a")] == [True, False, True, False]
    now += LogLimiter.SECONDS
    assert [is_due(what) for what in ("a", "a", "b")] == [True, False, True]


LOGS = """
from flannelette.services.runtime.telemetry.logs import configure_logs, get_logger
configure_logs("lease", "console", 0)
for _ in range(1000):
    get_logger().warning("a line that is longer than nothing")
print("still there")
"""


def test_a_full_disk_under_the_log_loses_its_lines_and_ends_no_service() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", LOGS], stdout=subprocess.PIPE, stderr=full, check=False, text=True
        )
    assert ran.stdout == "still there\n"
