"""TCP between pods across a narrow path, and the longest time for which nothing arrived."""

import asyncio
import socket
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final, Self

from lab.cluster import Pod

LONGEST_STALL: Final = 1.0
"""Seconds without a byte, after which users say that a connection hangs."""
_CHUNK: Final = 16 << 10
_PAUSE: Final = 0.01


class Transfers:
    """A connection from the first to the second pod of each pair, with 1.6 MB a second, while its block runs."""

    def __init__(self, pairs: Sequence[tuple[Pod, Pod]]) -> None:
        self.moved = 0
        """Bytes that have arrived."""
        self.stall = 0.0
        """The longest time, in seconds, in which none did on one of the connections."""
        self._pairs = pairs

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(*pair), name="transfer") for pair in self._pairs]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self, source: Pod, target: Pod) -> None:
        loop, family = asyncio.get_running_loop(), socket.AF_INET if target.address.version == 4 else socket.AF_INET6
        with target.namespace.inside():
            server = socket.create_server(("", 0), family=family)
        with source.namespace.inside():
            client = socket.socket(family)
        with closing(server), closing(client):
            server.setblocking(False)
            client.setblocking(False)
            last = time.monotonic()
            try:
                await loop.sock_connect(client, (str(target.address), server.getsockname()[1]))
                receiving, _ = await loop.sock_accept(server)
                with closing(receiving):
                    receiving.setblocking(False)
                    sending = asyncio.create_task(_send(client))
                    try:
                        while data := await loop.sock_recv(receiving, 4 * _CHUNK):
                            self.moved += len(data)
                            self.stall = max(self.stall, time.monotonic() - last)
                            last = time.monotonic()
                    finally:
                        sending.cancel()
                        await asyncio.gather(sending, return_exceptions=True)
            finally:
                self.stall = max(self.stall, time.monotonic() - last)


async def _send(client: socket.socket) -> None:
    while True:
        await asyncio.get_running_loop().sock_sendall(client, bytes(_CHUNK))
        await asyncio.sleep(_PAUSE)
