"""Where the repository's files are, for tests that read pages, scripts and golden texts."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
"""The repository."""
GOLDEN: Final = ROOT / "tests" / "golden"
"""Captured and expected texts."""
