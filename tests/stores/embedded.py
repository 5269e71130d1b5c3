"""The embedded store on one file, with a clock that the test sets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from flannelette.services.lease.stores.embedded import EmbeddedStore
from tests.examples.leases import SMALL_JSON

DAY = 86_400.0


@dataclass
class Clock:
    now: float = 1_000_000.25
    jumps: float = 0.0
    """How far it was set."""

    def set(self, seconds: float) -> None:
        self.now += seconds
        self.jumps += seconds

    def __call__(self) -> float:
        return self.now


Open = Callable[[], EmbeddedStore]


@contextmanager
def stores_on(path: Path, config: Path, clock: Clock) -> Iterator[Open]:
    """Opens the store on one file; closes the one before."""
    opened: list[EmbeddedStore] = []

    def open_again() -> EmbeddedStore:
        if opened:
            opened.pop()._database.close()
        opened.append(
            EmbeddedStore(
                path,
                net_config_path=config,
                lease_seconds=100,
                clock=clock,
                timer=lambda: clock.now - clock.jumps,
                draw=lambda n: 0,
            )
        )
        return opened[0]

    yield open_again
    opened.pop()._database.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A network configuration in a file."""
    path = tmp_path / "net.json"
    path.write_text(SMALL_JSON)
    return path


@pytest.fixture
def reopen(tmp_path: Path, config: Path, clock: Clock) -> Iterator[Open]:
    """Opens the same store again."""
    with stores_on(tmp_path / "l.db", config, clock) as open_again:
        yield open_again


@pytest.fixture
def store(reopen: Open) -> EmbeddedStore:
    return reopen()
