"""A TCP relay to a server, for what a network can do to a connection."""

import asyncio
from contextlib import suppress

from tests.etcd import EtcdServer, free_port


class Cable:
    """Passes everything on, until it is cut or loses what the server answers. Begins cut."""

    def __init__(self, server: EtcdServer) -> None:
        self.port = free_port()
        self.connections = 0
        """How many were accepted."""
        self._server = server
        self._listener: asyncio.Server | None = None
        self._ends: list[asyncio.StreamWriter] = []
        self._loses_answers = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def mend(self) -> None:
        """New connections pass everything on."""
        self._loses_answers = False
        self._listener = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    def cut(self) -> None:
        """All connections are closed, and new ones are refused."""
        assert self._listener is not None
        self._listener.close()
        while self._ends:
            self._ends.pop().close()

    def lose_answers(self) -> None:
        """The server hears and does everything from now on; its answers are lost, until the cable is mended."""
        self._loses_answers = True

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        except OSError:
            writer.close()
            return
        self._ends += [writer, there_writer]
        await asyncio.gather(
            self._copy(reader, there_writer, answers=False), self._copy(there_reader, writer, answers=True)
        )

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if not (answers and self._loses_answers):
                    writer.write(data)
                    await writer.drain()
        writer.close()
