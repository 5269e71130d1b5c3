"""Whoever asks `flannelette flanneld` for /readyz early gets no yes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from services.flanneld import main as flanneld
from services.runtime.health import Health


def test_it_is_not_ready_when_its_port_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    @contextmanager
    def probed(_ip: str, _port: int, health: Health) -> Iterator[None]:
        asked.append(health.reasons)
        yield

    async def ended(*_: object) -> int:
        return 0

    monkeypatch.setattr(sys, "argv", ["flanneld", "--healthz-port=1", "--ip-masq"])
    monkeypatch.setattr(flanneld, "http_server", probed)
    monkeypatch.setattr(flanneld, "supervise", ended)
    monkeypatch.setattr(flanneld, "configure_logs", lambda *_: None)
    assert flanneld.main() == 0
    assert asked == [[f"{name} is not ready yet" for name in ("lease", "dataplane", "masq")]]
