"""How long tests wait for what must come: only a failure takes as long, so it suits the slowest machine."""

import os
from collections.abc import Iterator
from typing import Final

FACTOR: Final = float(os.environ.get("FLANNELETTE_PATIENCE") or 1)
"""For a virtual machine, which is slower."""
PATIENCE: Final = 60.0 * FACTOR
"""Seconds. What takes longer will not come any more."""
RETIREMENT: Final = PATIENCE + 25.0
"""Seconds until an earlier backend is gone, which goes 20 s after the last lease that says it."""


def pauses() -> Iterator[float]:
    """Seconds between looks at what must come, 0.01 at first and 0.1 in the end.

    A look is a call or a process, and takes the processor from what it waits for.
    """
    pause = 0.01
    while True:
        yield pause
        pause = min(1.2 * pause, 0.1)
