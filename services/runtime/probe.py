"""`flannelette-probe lease`: is that service ready? Its gRPC health, asked over its socket.

For a container's HEALTHCHECK and for exec probes, which run for ever: so it is the standard library only. With grpc
imported it would take 100 ms of CPU each time instead of 20. That is possible because the call never changes: what we
send is one constant (RFC 9113, RFC 7541), and of what comes back only the message matters.
"""

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Final

_SECONDS: Final = 3.0
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
_END_STREAM, _END_HEADERS = 0x1, 0x4
_FRAME_HEADER: Final = struct.Struct(">HBBBI")  # its 24 bits of length are two fields
_STREAM: Final = 1


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME_HEADER.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _text(value: bytes) -> bytes:
    """A string literal of HPACK, not Huffman coded."""
    return bytes((len(value),)) + value


_HEADER_BLOCK: Final = b"".join(
    (
        b"\x83\x86",  # :method POST, :scheme http
        b"\x04" + _text(b"/grpc.health.v1.Health/Check"),  # :path
        b"\x01" + _text(b"localhost"),  # :authority
        b"\x0f\x10" + _text(b"application/grpc"),  # content-type
        b"\x00" + _text(b"te") + _text(b"trailers"),
    )
)
_REQUEST: Final = b"".join(
    (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        _frame(_SETTINGS, 0, 0, b""),
        _frame(_HEADERS, _END_HEADERS, _STREAM, _HEADER_BLOCK),
        _frame(_DATA, _END_STREAM, _STREAM, b"\0\0\0\0\0"),  # an empty HealthCheckRequest: the server as a whole
    )
)
_SERVING: Final = b"\0\0\0\0\x02\x08\x01"
_NOT_SERVING: Final = b"\0\0\0\0\x02\x08\x02"


def ask(address: str) -> str:
    """Why the service at `unix:PATH` or `HOST:PORT` is not ready; empty: it is ready."""
    try:
        with closing(_connect(address)) as connection:
            connection.sendall(_REQUEST)
            message = b"".join(_messages(connection))
    except OSError as error:
        return f"nothing answers on {address}: {error.strerror or error}"
    if message == _NOT_SERVING:
        return f"the service on {address} is not ready: `flannelette status` says why"
    return "" if message == _SERVING else f"what answers on {address} has no gRPC health"


def _connect(address: str) -> socket.socket:
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), _SECONDS)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_SECONDS)
    try:
        connection.connect(address.removeprefix("unix:"))
    except OSError:
        connection.close()
        raise
    return connection


def _messages(connection: socket.socket) -> Iterator[bytes]:
    """The data of our stream, until it ends in one way or another."""
    while len(header := _read(connection, _FRAME_HEADER.size)) == _FRAME_HEADER.size:
        high, low, kind, flags, stream = _FRAME_HEADER.unpack(header)
        payload = _read(connection, high << 8 | low)
        if stream == _STREAM and kind == _DATA:
            yield payload
        if kind == _GOAWAY or (stream == _STREAM and (flags & _END_STREAM or kind == _RST_STREAM)):
            return


def _read(connection: socket.socket, size: int) -> bytes:
    """So many bytes; fewer if that is all there is."""
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def main() -> int:
    """The console script. 0: ready. 1: not ready, and why. 2: wrong arguments."""
    if len(sys.argv) != 2:
        print("Usage: flannelette-probe lease|dataplane|masq|unix:PATH|HOST:PORT", file=sys.stderr)
        return 2
    (name,) = sys.argv[1:]
    if ":" in name:
        address = name
    else:
        directory = os.environ.get("FLANNELD_SOCKET_DIR") or "/run/flannelette"
        address = os.environ.get("FLANNELD_LISTEN") or f"unix:{directory}/{name}.sock"
    reason = ask(address)
    if reason:
        print(reason)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
