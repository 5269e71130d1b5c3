"""A channel to one server that presents the certificate in force, and explains why a call failed."""

import asyncio
import errno
import socket
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from services.runtime.rpc.transport import Options, Transport
from services.runtime.tls.files import Material

_LONGEST_CALL_SECONDS: Final = 60.0
"""A replaced channel stays open so long, for calls that still run."""
_SHORTEST_LOOK_SECONDS: Final = 0.01
_LONGEST_LOOK_SECONDS: Final = 1.0
_EXPLANATION_SECONDS: Final = 30.0
"""An explanation is reused so long for the same message of gRPC."""


@dataclass(frozen=True, slots=True)
class _Explanation:
    """The cause found at the last check, which costs the server a handshake."""

    sentence: str = ""
    material: Material | None = None
    details: str = ""
    until: float = 0.0

    def holds(self, material: Material | None, details: str, now: float) -> bool:
        return self.material is material and self.details == details and now < self.until


class ServerChannel:
    """A channel to `address` for the life of the process. Raises Misconfigured for an address that is not allowed."""

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
        """Call it when the connection is lost: replaces `channel` if the certificate has changed, and says whether.

        Calls on the previous channel continue: closing it would cancel them.
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
        """The explanation when no process listens on the unix socket."""
        return f"no answer on {self.address}: is {self._program} running, and is its socket accessible?"

    @property
    def is_deserted(self) -> bool:
        """No process listens on the unix socket. Other faults show in a call."""
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
        """Waits until a process may listen on the unix socket.

        Checks every tenth of the time waited so far, every 10 ms to every second: quick when both start together,
        cheap in a long outage.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        while self.is_deserted:  # noqa: ASYNC110 - nothing reports that change
            await asyncio.sleep(min(max(_SHORTEST_LOOK_SECONDS, (loop.time() - since) / 10), _LONGEST_LOOK_SECONDS))

    async def why(self, error: grpc.aio.AioRpcError) -> str:
        """The cause of the error, in a sentence that says what to do. Tries a handshake if there is no connection."""
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
