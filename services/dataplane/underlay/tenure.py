"""How long each address of the underlay was the node's: it returns to the one that it was known by. Pure."""

from collections.abc import Iterable
from typing import Final

from flannelette.services.core.family import Address

_BEFORE: Final = 3600.0
"""Seconds credited at the start to the address that the lease had then, or else to the first one."""
_MOST: Final = 8


class Tenure:
    """Counts seconds; time is an argument.

    When an address goes for a moment (a DHCP client that flushes its interface), the node takes another one, maybe a
    virtual IP that is there for a while; it goes back as soon as it can.
    """

    def __init__(self) -> None:
        self._seconds: dict[Address, float] = {}
        self._now: tuple[Address, ...] = ()
        self._at = 0.0

    def enter(self, addresses: Iterable[Address], now: float) -> None:
        """Records that the node has these addresses from now on."""
        self._count(now)
        self._now = tuple(addresses)
        self.take_published(self._now)

    def take_published(self, addresses: Iterable[Address]) -> None:
        """Records the addresses of the node's lease at the start of this process, or the first ones that it gets."""
        for address in () if self._seconds else tuple(addresses):
            self._seconds[address] = _BEFORE

    def order(self, now: float) -> tuple[Address, ...]:
        """The addresses that the node is known by, the longest first."""
        self._count(now)
        found = sorted(self._seconds, key=lambda address: -self._seconds[address])
        self._seconds = {address: self._seconds[address] for address in found[:_MOST]}
        return tuple(self._seconds)

    def _count(self, now: float) -> None:
        for address in self._now:
            self._seconds[address] = self._seconds.get(address, 0.0) + now - self._at
        self._at = now
