"""The line to one server: a channel that shows the certificate in force, and words for what is wrong with it."""

import asyncio
import errno
import socket
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from services.runtime.tls.files import Material
from services.runtime.transport import Options, Transport

_LONGEST_CALL_SECONDS: Final = 60.0
"""So long a channel that was replaced may have calls that are still running."""
_SHORTEST_LOOK_SECONDS: Final = 0.01
_LONGEST_LOOK_SECONDS: Final = 1.0
_EXPLANATION_SECONDS: Final = 30.0
"""So long the same words of gRPC are taken for the same fault."""


@dataclass(frozen=True, slots=True)
class _Explanation:
    """What was wrong at the last look, which costs the server a handshake."""

    sentence: str = ""
    material: Material | None = None
    details: str = ""
    until: float = 0.0

    def holds(self, material: Material | None, details: str, now: float) -> bool:
        return self.material is material and self.details == details and now < self.until


class Line:
    """A channel to `address` for as long as the process lives. Raises Misconfigured for one that is not allowed."""

    def __init__(self, address: str, program: str, transport: Transport, options: Options = ()) -> None:
        self.address = address
        self._path = address.removeprefix("unix:") if address.startswith("unix:") else ""
        self._program = program
        self._transport = transport
        self._options = options
        self._replaced: list[tuple[float, grpc.aio.Channel]] = []
        self._explained = _Explanation()
        self._open()

    def _open(self) -> None:
        self._shown = self._transport.material
        self.channel = self._transport.channel(self.address, self._options)

    async def renew(self) -> bool:
        """To be called when the connection is lost: whether `channel` is another one now, with a new certificate.

        Calls on the one before run on: closing it would cancel whoever awaits them.
        """
        if self._transport.material is self._shown:
            return False
        now = asyncio.get_running_loop().time()
        self._replaced.append((now, self.channel))
        self._open()
        while self._replaced[0][0] < now - _LONGEST_CALL_SECONDS:
            await self._replaced.pop(0)[1].close()
        return True

    @property
    def nobody(self) -> str:
        """What is wrong where nobody listens on a unix socket."""
        return f"nobody answers on {self.address}: is {self._program} running, and may we use its socket?"

    @property
    def is_deserted(self) -> bool:
        """It is a unix socket, and nobody listens there. What else may be wrong, a call tells."""
        if not self._path:
            return False
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                probe.connect(self._path)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ECONNREFUSED)
        return False

    async def until_attended(self) -> None:
        """Returns as soon as somebody listens, or may: where both start together that is soon, in an outage late.

        So it looks whenever a tenth of the time that it has waited has passed again, every 10 ms to every second.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        while self.is_deserted:  # noqa: ASYNC110 - nobody tells us when that changes
            await asyncio.sleep(min(max(_SHORTEST_LOOK_SECONDS, (loop.time() - since) / 10), _LONGEST_LOOK_SECONDS))

    async def why(self, error: grpc.aio.AioRpcError) -> str:
        """What is wrong, in a sentence that says what to do. Looks closer when there is no connection at all."""
        details = error.details() or error.code().name
        if error.code() is not grpc.StatusCode.UNAVAILABLE or "failed to connect" not in details:
            return f"{self.address}: {details}"
        if self._path:
            return self.nobody
        material, now = self._transport.material, asyncio.get_running_loop().time()
        if not self._explained.holds(material, details, now):
            sentence = await asyncio.to_thread(self._transport.why_not, self.address, self._program, details)
            self._explained = _Explanation(sentence, material, details, now + _EXPLANATION_SECONDS)
        return self._explained.sentence

    async def close(self) -> None:
        """Ends open calls."""
        for _, channel in self._replaced:
            await channel.close()
        await self.channel.close()
