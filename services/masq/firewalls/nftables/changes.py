"""Who changes nftables beside us: looks that need not be repeated, and a wait for the next change."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from services.masq.firewalls.firewall import ChainState
from services.masq.firewalls.nftables.generations import Generations, Newest
from services.masq.rules import Chain

_SHORTEST_PAUSE: Final = 0.02
"""Between two looks at a firewall that somebody changes all the time."""


class Changes:
    """The generation of the last look that mattered, and what that found. Opens its sockets when first needed.

    Every call but `close` raises Unavailable: the kernel does not tell.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """To be held from a look to the end of what it leads to: `next` does not take that for somebody else's."""
        self._opened: tuple[Generations, Newest] | None = None
        self._seen = -1
        self._looked = 0.0
        self._right: tuple[ChainState, ...] = ()
        self._right_since = -1
        """The generation that the last look began with, if it left everything as wanted."""
        self._culprits: dict[str, None] = {}

    @property
    def culprits(self) -> tuple[str, ...]:
        """Names of the processes that changed nftables when `next` returned last, as far as the kernel tells."""
        return tuple(self._culprits)

    def newest(self) -> int:
        """The number of the newest generation: take it before a look, so that no change after it is missed."""
        return self._open()[1].number()

    def still_right(self, chains: Sequence[Chain]) -> tuple[ChainState, ...] | None:
        """What the last look left, if it left just these chains as they shall be and nobody has changed anything."""
        if tuple(state.chain for state in self._right) == tuple(chains) and self.newest() == self._seen:
            return self._right
        return None

    def are_none(self) -> bool:
        """Whether the last look left everything right, and nobody has changed anything. For any thread."""
        return self.newest() == self._right_since

    def looked(self, generation: int, states: Sequence[ChainState]) -> None:
        """A look that began at this generation ended with these states."""
        self._seen, self._looked = generation, time.monotonic()
        self._right = tuple(replace(state, causes=(), commands=()) for state in states if state.as_wanted)
        self._right_since = generation if all(state.as_wanted for state in states) else -1

    async def next(self) -> None:
        """Returns when something is newer than the last look; nothing runs while nobody changes anything."""
        while True:
            news = await self._open()[0].next()
            async with self.turn:
                is_news = self.newest() != self._seen
            self._culprits = {g.name: None for g in news if g.number > self._seen and g.name}
            if is_news:
                await asyncio.sleep(max(0.0, self._looked + _SHORTEST_PAUSE - time.monotonic()))
                return

    def close(self) -> None:
        """Frees the sockets."""
        for each in self._opened or ():
            each.close()

    def _open(self) -> tuple[Generations, Newest]:
        """To listen before the first question, so that no change in between is missed."""
        self._opened = self._opened or (Generations(), Newest())
        return self._opened
