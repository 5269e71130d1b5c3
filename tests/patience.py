"""How long tests wait for what must come: only a failure takes as long, so it suits the slowest machine."""

import os
from typing import Final

FACTOR: Final = float(os.environ.get("FLANNELETTE_PATIENCE") or 1)
"""For a virtual machine, which is slower."""
PATIENCE: Final = 60.0 * FACTOR
"""Seconds. What takes longer will not come any more."""
RETIREMENT: Final = PATIENCE + 25.0
"""Seconds until an earlier backend is gone, which goes 20 s after the last lease that says it."""
