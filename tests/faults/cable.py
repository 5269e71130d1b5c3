"""A TCP relay to a server, for what a network can do to a connection."""

import asyncio
from contextlib import suppress
from typing import Final

from tests.etcd.server import EtcdServer
from tests.ports import free_port

_HEADERS: Final = 1


class Cable:
    """Passes everything on, until it is cut or loses what the server answers. Begins cut."""

    def __init__(self, server: EtcdServer) -> None:
        self.port = free_port()
        self.connections = 0
        """How many were accepted."""
        self._server = server
        self._listener: asyncio.Server | None = None
        self._ends: list[asyncio.StreamWriter] = []
        self._loses_answers = self._breaks_at_answer = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def mend(self) -> None:
        """New connections pass everything on."""
        self._loses_answers = self._breaks_at_answer = False
        self._listener = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    def cut(self) -> None:
        """All connections are closed, and new ones are refused."""
        assert self._listener is not None
        self._listener.close()
        self._close()

    def lose_answers(self) -> None:
        """The server hears and does everything from now on; its answers are lost, until the cable is mended."""
        self._loses_answers = True

    def break_at_answer(self) -> None:
        """The server hears and does one thing more; in place of its answer all connections are closed."""
        self._breaks_at_answer = True

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        except OSError:
            writer.close()
            return
        self._ends += [writer, there_writer]
        await asyncio.gather(self._copy(reader, there_writer), self._copy_answers(there_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _copy_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Frame by frame (RFC 9113, section 4.1), for only HEADERS begin an answer."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(9)
                frame = head + await reader.readexactly(int.from_bytes(head[:3]))
                if self._breaks_at_answer and head[3] == _HEADERS:
                    self._breaks_at_answer = False
                    self._close()
                if not self._loses_answers:
                    writer.write(frame)
                    await writer.drain()
        writer.close()

    def _close(self) -> None:
        while self._ends:
            self._ends.pop().close()
