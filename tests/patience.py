"""How long tests wait for what must come: only a failure takes as long, so it suits the slowest machine."""

from typing import Final

PATIENCE: Final = 60.0
"""Seconds. What takes longer will not come any more."""
