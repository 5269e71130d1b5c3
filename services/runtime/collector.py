"""Python's collector of cycles, in processes that keep leases: these are many, live long and are part of no cycle."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLDS: Final = (10_000, 50, 20)
"""With its own it would look at all of them again and again while ten thousand come in, a tenth of the time."""
_MANY: Final = 100
"""Leases in one go; fewer are left to it."""


def configure() -> None:
    """Once for the process."""
    gc.set_threshold(*_THRESHOLDS)


@contextmanager
def making(leases: int) -> Iterator[None]:
    """While the block makes so many leases, nobody looks for garbage among them; it must not wait for anything.

    The collector would look at each of their parts, only to find that it stays. Instead all that there is counts as
    old after the block, at once: the two calls move whole lists. A cycle among it goes with the next full collection.
    """
    if leases < _MANY or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
        gc.enable()
