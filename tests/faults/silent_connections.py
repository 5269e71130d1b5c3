"""Connections over TCP that say nothing: what a stranger needs no certificate for."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

_AT_ONCE = 500
"""So many the kernel is asked for before the other side gets time to accept them."""


class Silent:
    """To a port of 127.0.0.1, from these addresses of loopback in turn."""

    def __init__(self, port: int, count: int, sources: int, words: bytes = b"") -> None:
        self._open = [_opened(port, f"127.0.7.{1 + number % sources}", number) for number in range(count)]
        for each in self._open if words else ():
            each.setblocking(True)
            each.sendall(words)
            each.setblocking(False)

    @property
    def alive(self) -> int:
        """How many the other side has not closed."""
        return sum(map(_is_alive, self._open))

    def close(self) -> None:
        for each in self._open:
            each.close()


@contextmanager
def silent(port: int, count: int, sources: int = 1, words: bytes = b"") -> Iterator[Silent]:
    made = Silent(port, count, sources, words)
    try:
        yield made
    finally:
        made.close()


def _opened(port: int, source: str, number: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.bind((source, 0))
    made.connect_ex(("127.0.0.1", port))
    if number % _AT_ONCE == _AT_ONCE - 1:
        time.sleep(0.02)
    return made


def _is_alive(made: socket.socket) -> bool:
    try:
        return made.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
