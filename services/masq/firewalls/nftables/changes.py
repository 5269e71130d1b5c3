"""Who changes nftables beside us: looks that need not be repeated, and a wait for the next change."""

import asyncio
import time
from typing import Final

from services.masq.firewalls.nftables.generations import Generations

_SHORTEST_PAUSE: Final = 0.02
"""Between two looks at a firewall that somebody changes all the time."""


class Changes:
    """The generation of the last look that mattered. Opens its sockets when they are first needed.

    Every call but `close` raises Unavailable: the kernel does not tell.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """To be held from a look to the end of what it leads to: `next` does not take that for somebody else's."""
        self._opened: Generations | None = None
        self._seen = -1
        self._looked = 0.0
        self._culprits: dict[str, None] = {}

    @property
    def culprits(self) -> tuple[str, ...]:
        """Names of the processes that changed nftables when `next` returned last, as far as the kernel tells."""
        return tuple(self._culprits)

    def newest(self) -> int:
        """The number of the newest generation: take it before a look, so that no change after it is missed."""
        return self._generations().newest()

    def none_since_look(self) -> bool:
        """Nobody has changed anything since the look that `looked` told of."""
        return self.newest() == self._seen

    def looked(self, generation: int) -> None:
        """A look that began at this generation found everything right."""
        self._seen, self._looked = generation, time.monotonic()

    async def next(self) -> None:
        """Returns when something is newer than the last look; nothing runs while nobody changes anything."""
        while True:
            news = await self._generations().next()
            async with self.turn:
                is_news = not self.none_since_look()
            self._culprits = {g.name: None for g in news if g.number > self._seen and g.name}
            if is_news:
                await asyncio.sleep(max(0.0, self._looked + _SHORTEST_PAUSE - time.monotonic()))
                return

    def close(self) -> None:
        """Frees the sockets."""
        if self._opened:
            self._opened.close()

    def _generations(self) -> Generations:
        self._opened = self._opened or Generations()
        return self._opened
