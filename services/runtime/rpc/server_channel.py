"""A channel to one server that presents the certificate in force, and explains why a call failed."""

import asyncio
import errno
import socket
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from flannelette.services.runtime.rpc.transport import Options, Transport
from flannelette.services.runtime.tls.files import Material

_LONGEST_CALL_SECONDS: Final = 60.0
"""Time that a replaced channel stays open, for calls that still run."""
_SHORTEST_POLL_SECONDS: Final = 0.01
_LONGEST_POLL_SECONDS: Final = 1.0
_EXPLANATION_SECONDS: Final = 30.0
"""Time that an explanation is reused for the same message of gRPC."""


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
        self._presented = self._transport.material
        self.channel = self._transport.channel(self.address, self._options)

    async def renew(self) -> bool:
        """Replaces `channel` if the certificate has changed; returns whether. For a lost connection.

        Calls on the previous channel continue: closing it would cancel them.
        """
        if self._transport.material is self._presented:
            return False
        now = asyncio.get_running_loop().time()
        self._replaced.append((now, self.channel))
        self._open()
        while self._replaced[0][0] < now - _LONGEST_CALL_SECONDS:
            await self._replaced.pop(0)[1].close()
        return True

    @property
    def absent_reason(self) -> str:
        """A sentence that says that no process listens on the unix socket."""
        return f"no answer on {self.address}: is {self._program} running, and is its socket accessible?"

    @property
    def is_absent(self) -> bool:
        """Whether no process listens on the unix socket. Other faults appear in a call."""
        if not self._path:
            return False
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                probe.connect(self._path)
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ECONNREFUSED)
        return False

    async def until_present(self) -> None:
        """Waits until a process may listen on the unix socket.

        The interval between checks is a tenth of the time waited, from 10 ms to 1 s: quick when both start together,
        cheap in a long outage.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        while self.is_absent:  # noqa: ASYNC110 - nothing reports that change
            await asyncio.sleep(min(max(_SHORTEST_POLL_SECONDS, (loop.time() - since) / 10), _LONGEST_POLL_SECONDS))

    async def why(self, error: grpc.aio.AioRpcError) -> str:
        """A sentence with the cause of the error and the remedy. Tries a handshake if there is no connection."""
        details = error.details() or error.code().name
        if error.code() is not grpc.StatusCode.UNAVAILABLE or "failed to connect" not in details:
            return f"{self.address}: {details}"
        if self._path:
            return self.absent_reason
        material, now = self._transport.material, asyncio.get_running_loop().time()
        if not self._explained.holds(material, details, now):
            sentence = await asyncio.to_thread(self._transport.explain_failure, self.address, self._program, details)
            self._explained = _Explanation(sentence, material, details, now + _EXPLANATION_SECONDS)
        return self._explained.sentence

    async def close(self) -> None:
        """Closes the channel and those it has replaced, which ends open calls."""
        for _, channel in self._replaced:
            await channel.close()
        await self.channel.close()
