"""Times and sizes that come from outside, and the bounds within which they mean something.

Whatever reads a number of a message, a file, an annotation or a store takes it from here. So no sum of two of them,
and nothing that is told on, leaves what a float, a `datetime` or google.protobuf.Timestamp can hold.
"""

import math
from typing import Final, Protocol

from flannelette.services.core.errors import InvalidInput

LATEST: Final = 253_402_300_798.0
"""Unix seconds: a second before the year 10000, where a Timestamp ends."""
LONGEST: Final = 1e9
"""Seconds, some thirty years: longer than any lease or wait."""
SMALLEST_MTU: Final = {4: 68, 6: 1280}
"""Bytes, by IP version: what every link must carry (RFC 791, RFC 8200). The kernel refuses less for IPv4, and takes
IPv6 away from a device with less."""
LARGEST_MTU: Final = 65_535
MOST_LEASES: Final = 100_000
"""Largest number of leases in a table, unless --max-leases says otherwise."""
LONGEST_NAME: Final = 512
"""Characters of what something is called, or of a MAC or key: flannel's keys have at most 64, nodes' names 253."""
LONGEST_DATA: Final = 8_192
"""Characters of the backend's data in a lease: it goes to every node. Flannel's own have some hundred."""
LONGEST_REASON: Final = 1_000
"""Characters of why something is refused: what it quotes may be as long as a store takes it, some megabytes."""

_NANOS: Final = 1_000_000_000


class ProtoTime(Protocol):
    """google.protobuf.Timestamp and Duration, whose fields may hold anything."""

    @property
    def seconds(self) -> int: ...  # noqa: D102 - see above, also below
    @property
    def nanos(self) -> int: ...  # noqa: D102


def unix_time(told: ProtoTime, field: str) -> float:
    """Seconds since 1970, from 0 to LATEST. Raises InvalidInput, naming the field."""
    seconds, nanos = told.seconds, told.nanos
    if not (0 <= seconds <= LATEST - 1 and 0 <= nanos < _NANOS):
        raise InvalidInput(f"{field} is {seconds} s and {nanos} ns: give a time between the years 1970 and 9999")
    return (seconds * _NANOS + nanos) / 1e9


def seconds_of(told: ProtoTime, field: str, least: float = 0.0, most: float = LONGEST) -> float:
    """A number of seconds. Raises InvalidInput, naming the field, for one out of bounds."""
    seconds, nanos = told.seconds, told.nanos
    total = (seconds * _NANOS + nanos) / 1e9
    if not (abs(nanos) < _NANOS and seconds * nanos >= 0 and least <= total <= most):
        raise InvalidInput(f"{field} is {_shown(seconds, nanos)} s: use {least:g} to {most:g} s")
    return total


def stored_time(value: object, field: str) -> float | None:
    """Unix seconds as a file has them, by the same bounds; None for None. Raises InvalidInput, naming the field."""
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value <= LATEST:
        raise InvalidInput(f"{field} is {value!r:.60}: give a time between the years 1970 and 9999, in Unix seconds")
    return float(value)


def nearest_time(seconds: float) -> float:
    """The time that is meant where there is no refusing it: of the years 1970 to 9999, the nearest."""
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), LATEST)


def _shown(seconds: int, nanos: int) -> str:
    return f"{seconds + nanos / 1e9:g}" if abs(nanos) < _NANOS else f"{seconds}, {nanos} ns"
