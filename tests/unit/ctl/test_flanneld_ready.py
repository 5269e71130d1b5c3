"""Whoever asks `flannelette flanneld` for /readyz early gets no yes, and without --healthz-port no answer at all."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flannelette.services.flanneld import main as flanneld
from flannelette.services.flanneld import separate
from flannelette.services.runtime.telemetry.health import Health


async def ended(*_: object) -> int:
    return 0


def test_it_is_not_ready_when_its_port_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    @asynccontextmanager
    async def probed(_ip: str, _port: int, health: Health, _metrics: object) -> AsyncIterator[None]:
        asked.append(health.reasons)
        yield

    monkeypatch.setattr(sys, "argv", ["flanneld", "--healthz-port=1", "--ip-masq", "--separate"])
    monkeypatch.setattr(separate, "http_server", probed)
    monkeypatch.setattr(separate, "supervise", ended)
    monkeypatch.setattr(flanneld, "configure_logs", lambda *_: None)
    assert flanneld.main() == 0
    assert asked == [[f"{name} is not ready yet" for name in ("lease", "dataplane", "masq")]]


def test_without_a_port_it_opens_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened(*address: object, **_: object) -> None:
        raise OSError(f"{address} was opened")

    monkeypatch.setattr(sys, "argv", ["flanneld", "--ip-masq", "--separate"])
    monkeypatch.setattr("asyncio.start_server", opened)
    monkeypatch.setattr(separate, "supervise", ended)
    monkeypatch.setattr(flanneld, "configure_logs", lambda *_: None)
    assert flanneld.main() == 0
