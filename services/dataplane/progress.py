"""What a turn that programmed the kernel is worth reporting. Pure."""

from collections.abc import Mapping
from typing import Final

from services.core.progress import FailedLease, Progress

MOST_FAILED: Final = 50
"""Failed leases in a report, as lease.proto says; more would say no more."""


def progress_after(last: Progress | None, node: str, cursor: str, failed: Mapping[str, str], now: float) -> Progress:
    """How far the node is after a turn. What was reached before stays reached since then."""
    since = last.reached_at if last is not None and last.cursor == cursor else now
    first = sorted(failed)[:MOST_FAILED] if failed else ()
    return Progress(node, cursor, tuple(FailedLease(name, failed[name]) for name in first), len(failed), since)
