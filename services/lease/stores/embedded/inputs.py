"""What the embedded store observes beside its database: the network configuration file, and jumps of the clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from services.core.errors import InvalidInput
from services.core.network import NetworkConfig, parse_network

_TOLERANCE: Final = 5.0
"""Seconds. NTP moves a clock that is off by less without a jump; small steps add up."""


class ClockJumps:
    """`clock` is Unix time, `timer` one that only ever goes on. Neither knows what passed between two processes."""

    def __init__(self, clock: Callable[[], float], timer: Callable[[], float]) -> None:
        self._clock = clock
        self._timer = timer
        self._offset = self._now()

    @property
    def seconds(self) -> float:
        """How far the clock was set since the last `take`; 0 if that is next to nothing."""
        seconds = self._now() - self._offset
        return seconds if abs(seconds) > _TOLERANCE else 0.0

    def take(self) -> None:
        """What was written by the clock of before is right again."""
        self._offset = self._now()

    def _now(self) -> float:
        return self._clock() - self._timer()


class NetworkFile:
    """The network configuration file; the last good configuration stays in force."""

    def __init__(self, path: Path) -> None:
        self.network: NetworkConfig | None = None
        self.error = f"the network configuration {path} has not been read yet"
        """Why the file is not in force; empty if it is."""
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def refresh(self) -> bool:
        """Reads the file again if it has changed; returns whether `network` or `error` has."""
        before = (self.network, self.error)
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_ctime_ns)
            if seen != self._seen:
                self.network, self.error = parse_network(self._path.read_text(encoding="utf-8")), ""
                self._seen = seen
        except FileNotFoundError:
            self._fail(None, f"there is no network configuration: write flannel's JSON to {self._path}")
        except OSError as error:
            self._fail(None, f"cannot read the network configuration {self._path}: {error.strerror}")
        except InvalidInput as error:
            self._fail(seen, f"{error} (in {self._path})")
        except ValueError:
            self._fail(seen, f"the network configuration {self._path} is not UTF-8 text")
        return (self.network, self.error) != before

    def _fail(self, seen: tuple[int, ...] | None, error: str) -> None:
        self._seen = seen
        self.error = error
