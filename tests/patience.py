"""How long tests wait for what must come: only a failure takes as long, so it suits the slowest machine."""

import os
from typing import Final

PATIENCE: Final = 60.0 * float(os.environ.get("FLANNELETTE_PATIENCE") or 1)
"""Seconds. What takes longer will not come any more; $FLANNELETTE_PATIENCE is a factor, for an emulated machine."""
