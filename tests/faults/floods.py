"""Floods over TCP: what a stranger can do without a certificate, and a member with one. Bounded, on loopback.

`python -m tests.faults.floods KIND PORT SECONDS [CERTIFICATE KEY AUTHORITIES]` runs one, as a process of its own.
"""

import itertools
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import grpc

from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.services.runtime.tls import TlsFiles

ADDRESSES: Final = 100
HELLO: Final = b"\x16\x03\x01\x3c\x00\x01\x00\x3b\xfc\x03\x03" + bytes(15_000)
"""A ClientHello (RFC 8446) of 15 KB without its last bytes."""
_A_SECOND: Final = 4_000
_OPEN: Final = 6_000
"""Connections that a flood keeps open, the newest."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SERVICE: Final = b"/flannelette.lease.v1.LeaseService/"
_STREAMS: Final = 500
"""Begun and reset in one write."""
_HALVES: Final = 1_024
_CONNECTIONS: Final = 200
_LISTINGS: Final = 200
_CLOSED_WINDOW: Final = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x04" + bytes(4)
)
"""The beginning of a connection whose client reads no answer: SETTINGS_INITIAL_WINDOW_SIZE is 0."""
_AT_ONCE: Final = 16


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Of HTTP/2 (RFC 9113)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(name: bytes = b"GetStatus") -> bytes:
    """Of a call of gRPC, in HPACK (RFC 7541): values are literals that are not indexed."""
    path = bytes([4, len(_SERVICE + name)]) + _SERVICE + name
    return b"\x83\x87" + path + b"\x01\x01x" + b"\x0f\x10\x10application/grpc" + b"\x00\x02te\x08trailers"


def connections(port: int, until: float, words: bytes) -> None:
    """New ones, as many a second as the machine allows up to 4,000, that say these words and nothing else."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    opened: deque[socket.socket] = deque()
    begun = time.monotonic()
    for number in itertools.count():
        if time.monotonic() > until:
            break
        made = socket.socket()
        made.setblocking(False)
        with suppress(OSError):
            made.bind((f"127.0.9.{1 + number % ADDRESSES}", 0))
            made.connect_ex(("127.0.0.1", port))
            if words:
                with suppress(BlockingIOError):
                    made.send(words)
        opened.append(made)
        if len(opened) > min(_OPEN, most - 100):
            opened.popleft().close()
        if (early := begun + number / _A_SECOND - time.monotonic()) > 0:
            time.sleep(early)
    print(len(opened), number, flush=True)


def _member(port: int, files: Sequence[str], number: int, words: bytes = _PREFACE) -> socket.socket:
    """A connection with this certificate; without one it has no TLS."""
    source = (f"127.0.9.{1 + number % ADDRESSES}", 0)
    plain = socket.create_connection(("127.0.0.1", port), 2, source)
    if not files:
        plain.sendall(words)
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(*files[:2])
    context.set_alpn_protocols(["h2"])
    made = context.wrap_socket(plain)
    made.sendall(words)
    return made


def resets(port: int, until: float, files: Sequence[str]) -> None:
    """Calls that are begun and reset at once (CVE-2023-44487), on a new connection when the old one is closed."""
    block, sent = headers(), 0
    while time.monotonic() < until:
        with suppress(OSError), _member(port, files, 0) as made:
            for stream in itertools.count(1, 2 * _STREAMS):
                if time.monotonic() > until:
                    break
                numbers = range(stream, stream + 2 * _STREAMS, 2)
                pairs = (frame(1, 4, each, block) + frame(3, 0, each, b"\x00\x00\x00\x08") for each in numbers)
                made.sendall(b"".join(pairs))
                sent += _STREAMS
        time.sleep(0.01)
    print(sent, flush=True)


def callers_of_nothing(port: int, until: float, files: Sequence[str], words: bytes) -> None:
    """Connections of a member that end their handshake, say these words and call nothing."""
    opened: deque[socket.socket] = deque()
    numbers = itertools.count()

    def connect() -> None:
        while time.monotonic() < until:
            with suppress(OSError):
                opened.append(_member(port, files, next(numbers), words))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in range(_AT_ONCE):
            threads.submit(connect)
    print(len(opened), flush=True)


def halves(port: int, until: float, files: Sequence[str]) -> None:
    """Calls that are begun and get no request, as many as the server takes, on many connections."""
    block = headers()
    opened: deque[socket.socket] = deque()
    for number in itertools.count():
        if time.monotonic() > until:
            break
        with suppress(OSError):
            opened.append(_member(port, files, number))
            opened[-1].sendall(b"".join(frame(1, 4, each, block) for each in range(1, 2 * _HALVES, 2)))
        if len(opened) > _CONNECTIONS:
            with suppress(OSError):
                opened.popleft().close()
        time.sleep(0.01)
    print(number, flush=True)


def listings(port: int, until: float, files: Sequence[str]) -> None:
    """Calls of ListLeases, 200 at once; prints how many were answered, and how many bytes that was."""
    certificate, key, authorities = (Path(each).read_bytes() for each in files)
    credentials = grpc.ssl_channel_credentials(authorities, key, certificate)
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    answered = size = 0
    while time.monotonic() < until:
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            stub: Any = lease_pb2_grpc.LeaseServiceStub(cast("Any", channel))
            calls = [stub.ListLeases.future(lease_pb2.ListLeasesRequest()) for _ in range(_LISTINGS)]
            for each in calls:
                with suppress(grpc.RpcError, grpc.FutureTimeoutError):
                    size += each.result(timeout=max(0.01, until - time.monotonic())).ByteSize()
                    answered += 1
        time.sleep(0.05)
    print(answered, size, flush=True)


def unread(port: int, until: float, files: Sequence[str]) -> None:
    """Calls of ListLeases whose answers nobody reads, on many connections."""
    block = headers(b"ListLeases")
    opened: deque[socket.socket] = deque()
    for number in itertools.count():
        if time.monotonic() > until:
            break
        with suppress(OSError):
            opened.append(_member(port, files, number, _CLOSED_WINDOW))
            for stream in range(1, 2 * _LISTINGS, 2):
                opened[-1].sendall(frame(1, 4, stream, block) + frame(0, 1, stream, bytes(5)))
                time.sleep(0.002)
        if len(opened) > _CONNECTIONS:
            with suppress(OSError):
                opened.popleft().close()
        time.sleep(0.05)
    print(number, flush=True)


FLOODS: Final[Mapping[str, Callable[..., None]]] = {
    "connections": lambda port, until, _: connections(port, until, b""),
    "hellos": lambda port, until, _: connections(port, until, HELLO),
    "handshakes": partial(callers_of_nothing, words=b""),
    "prefaces": partial(callers_of_nothing, words=_PREFACE),
    "resets": resets,
    "halves": halves,
    "listings": listings,
    "unread": unread,
}


@contextmanager
def flood(kind: str, port: int, seconds: float, files: TlsFiles | None = None) -> Iterator[subprocess.Popen[str]]:
    """One that runs for so many seconds, at most as long as the block."""
    more = map(str, (files.certificate, files.key, files.authorities)) if files else ()
    command = [sys.executable, "-m", "tests.faults.floods", kind, str(port), str(seconds), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    FLOODS[sys.argv[1]](int(sys.argv[2]), time.monotonic() + float(sys.argv[3]), tuple(sys.argv[4:]))
