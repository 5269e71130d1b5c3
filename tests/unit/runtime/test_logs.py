"""What goes into the log, and how often."""

import pytest

from services.runtime.telemetry.logs import LogLimiter


def test_each_thing_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    is_due = LogLimiter()
    assert [is_due(what) for what in ("a", "a", "b", "a")] == [True, False, True, False]
    now += LogLimiter.SECONDS
    assert [is_due(what) for what in ("a", "a", "b")] == [True, False, True]
