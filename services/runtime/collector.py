"""Python's collector of cycles, in processes that keep leases: these are many, live long and are part of no cycle."""

import gc
from typing import Final

_THRESHOLDS: Final = (10_000, 50, 20)
"""With its own it would look at all of them again and again while ten thousand come in, a tenth of the time."""
_MANY: Final = 100
"""Leases in one go; fewer are left to it."""


def configure() -> None:
    """Once for the process."""
    gc.set_threshold(*_THRESHOLDS)


class making:  # noqa: N801 - reads like the context manager that it is, and a class costs one lease less than a generator
    """While the block makes so many leases, nobody looks for garbage among them; it must not wait for anything.

    The collector would look at each of their parts, only to find that it stays. Instead all that there is counts as
    old after the block, at once: the two calls move whole lists. A cycle among it goes with the next full collection.
    """

    __slots__ = ("_is_off",)

    def __init__(self, leases: int) -> None:
        self._is_off = leases >= _MANY and gc.isenabled()

    def __enter__(self) -> None:
        if self._is_off:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._is_off:
            gc.freeze()
            gc.unfreeze()
            gc.enable()
