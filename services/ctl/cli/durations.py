"""Durations as users write them: `90s`, `1m30s`, `2.5s`, `500ms`, `12h`, `2d`."""

import math
import re
from typing import Final

_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_WHOLE: Final = re.compile(f"(?:{_PART.pattern})+", re.ASCII)
LONGEST: Final = 36_500.0 * 86_400
"""A hundred years, in seconds."""


def read_duration(text: str, plain: float = 0) -> float:
    """Returns the seconds; a number without a unit counts `plain` seconds each, and is refused where that is 0.

    Raises ValueError, saying what to write.
    """
    if _WHOLE.fullmatch(text):
        return math.fsum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    try:
        seconds = float(text) * plain if plain else math.nan
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise ValueError(f"{text!r} is not a duration: write 90s, 1m30s, 12h or 2d")
    return seconds


def write_duration(seconds: float) -> str:
    """Returns the duration in its largest whole unit: `1h`, `90s`."""
    thousandths = {unit: round(size * 1000) for unit, size in _UNITS.items()}
    whole = [unit for unit, size in thousandths.items() if seconds and not round(seconds * 1000) % size]
    unit = whole[-1] if whole else "s"
    return f"{seconds / _UNITS[unit]:g}{unit}"
