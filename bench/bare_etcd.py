"""etcd on a plain socket: puts that cost the bench nothing beside, and a watch that shows what etcd itself takes.

gRPC is messages with five bytes before each, in HTTP/2 frames (RFC 9113). To ask for what is written here, and to
find the messages in the answers, takes neither the compression of headers nor a library.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bench.result import BenchFailed
from flannelette.services.lease.stores.etcd.client import rpc

_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_FIRST_WINDOW: Final = 65_535
"""Bytes that may be under way to etcd on a connection, until it says more."""
_WINDOW: Final = 1 << 30
"""The same to us."""
_NUMBER: Final = struct.Struct(">I")
_CALL: Final = {
    b":method": b"POST",
    b":scheme": b"http",
    b":authority": b"etcd",
    b":path": b"",
    b"te": b"trailers",
    b"content-type": b"application/grpc",
}
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_KV, _WATCH = b"/etcdserverpb.KV/", b"/etcdserverpb.Watch/Watch"


@dataclass(slots=True)
class _Stream:
    """A call in progress, as an HTTP/2 stream."""

    take: Callable[[bytes], None]
    """Called with each message."""
    ended: Callable[[], None]
    buffer: bytearray = field(default_factory=bytearray)


class BareEtcd(asyncio.Protocol):
    """One connection without TLS; every call of it may be under way at once."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._window = _FIRST_WINDOW
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Calls that etcd has no room for yet, and their bytes that count."""
        self._streams: dict[int, _Stream] = {}
        self._next = 1

    def put(self, key: bytes, value: bytes) -> "asyncio.Future[bytes]":
        """Is written to the socket at once; done when etcd has it. Raises BenchFailed then."""
        return self._ask(b"Put", rpc.PutRequest(key=key, value=value))

    def delete(self, key: bytes) -> "asyncio.Future[bytes]":
        """Deletes a key, as `put` writes one."""
        return self._ask(b"DeleteRange", rpc.DeleteRangeRequest(key=key))

    async def watch(self, prefix: bytes, end: bytes, heard: Callable[[float, Any], None]) -> None:
        """Returns when the watch is open; each event of it is told with the time at which it was here."""
        opened = asyncio.get_running_loop().create_future()

        def take(message: bytes) -> None:
            at, response = time.monotonic(), rpc.WatchResponse.FromString(message)
            if response.created:
                opened.set_result(None)
            for event in response.events:
                heard(at, event)

        create = rpc.WatchCreateRequest(key=prefix, range_end=end)
        self._call(_WATCH, rpc.WatchRequest(create_request=create), _Stream(take, lambda: None), is_open=True)
        async with asyncio.timeout(10):
            await opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP is
        self._transport = transport
        settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, _WINDOW))
        transport.write(_PREFACE + settings + _frame(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(_WINDOW)))

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._buffer += data
        while len(self._buffer) >= 9 and len(self._buffer) >= (end := 9 + int.from_bytes(self._buffer[:3])):
            kind, flags, stream = self._buffer[3], self._buffer[4], int.from_bytes(self._buffer[5:9])
            payload = bytes(self._buffer[9:end])
            del self._buffer[:end]
            self._take(kind, flags, stream, payload)

    def close(self) -> None:
        """Closes the connection, which ends all calls."""
        self._transport.close()

    def _ask(self, method: bytes, request: Any) -> "asyncio.Future[bytes]":
        answer = asyncio.get_running_loop().create_future()

        def ended() -> None:
            if not answer.done():
                answer.set_exception(BenchFailed(f"etcd refused a {method.decode()}"))

        self._call(_KV + method, request, _Stream(answer.set_result, ended))
        return answer

    def _call(self, path: bytes, request: Any, stream: _Stream, *, is_open: bool = False) -> None:
        number, self._next = self._next, self._next + 2
        self._streams[number] = stream
        block = b"".join(_header(name, value) for name, value in {**_CALL, b":path": path}.items())
        message = request.SerializeToString()
        body = b"\0" + _NUMBER.pack(len(message)) + message
        end = 0 if is_open else _END_STREAM
        self._waiting.append(
            (_frame(_HEADERS, _END_HEADERS, number, block) + _frame(_DATA, end, number, body), len(body))
        )
        self._send()

    def _send(self) -> None:
        while self._waiting and self._waiting[0][1] <= self._window:
            call, size = self._waiting.popleft()
            self._window -= size
            self._transport.write(call)

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._transport.write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _WINDOW_UPDATE and number == 0:
            self._window += _NUMBER.unpack(payload)[0]
            self._send()
        elif (stream := self._streams.get(number)) is not None:
            if kind == _DATA:
                stream.buffer += payload
                _take_messages(stream)
            if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                del self._streams[number]
                stream.ended()


@asynccontextmanager
async def bare_etcd(endpoint: str) -> AsyncIterator[BareEtcd]:
    """A connection to `http://HOST:PORT`."""
    host, _, port = endpoint.removeprefix("http://").rpartition(":")
    _, etcd = await asyncio.get_running_loop().create_connection(BareEtcd, host, int(port))
    try:
        yield etcd
    finally:
        etcd.close()


def _take_messages(stream: _Stream) -> None:
    buffer = stream.buffer
    while len(buffer) >= 5 and len(buffer) >= (end := 5 + int.from_bytes(buffer[1:5])):
        message = bytes(buffer[5:end])
        del buffer[:end]
        stream.take(message)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + _NUMBER.pack(stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    """A literal that is not indexed (RFC 7541, 6.2.2), so that there is no state to keep."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
