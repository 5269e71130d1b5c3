"""Pings from inside a namespace, on raw sockets; and under which address they arrive."""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address
from itertools import count
from typing import Final, Self

from lab.icmp import REPLY, REQUEST, Echo, decode
from lab.netns import NetworkNamespace

_SOL_RAW: Final = 255
_ICMP_FILTER: Final = 1  # linux/icmp.h: a bit per type that shall not be delivered
_SO_RCVBUFFORCE: Final = 33
_RECEIVE_BUFFER: Final = 8 << 20  # a busy machine must not look like a lossy network
_AT_ONCE: Final = 64

_tokens = count(1)


class _IcmpSocket:
    """Hands every message of one kind that arrives in a namespace to `received`, with its source."""

    def __init__(self, namespace: NetworkNamespace, kind: int, received: Callable[[IPv4Address, Echo], None]) -> None:
        with namespace.inside():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.setblocking(False)
        self._socket.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", ~(1 << kind) & 0xFFFF_FFFF))
        with suppress(PermissionError):  # in a user namespace the limits of the machine stay
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        self._received = received
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def send(self, target: IPv4Address, message: Echo) -> None:
        """Sends it. What cannot be sent is lost like what does not arrive: no answer will come."""
        with suppress(OSError):
            self._socket.sendto(message.encode(), (str(target), 0))

    def close(self) -> None:
        """Stops listening."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                decoded = decode(self._socket.recv(256))
                if decoded:
                    self._received(*decoded)


class Pinger:
    """Pings from one namespace."""

    def __init__(self, namespace: NetworkNamespace) -> None:
        self._socket = _IcmpSocket(namespace, REPLY, self._answered)
        self._identifier = os.getpid() & 0xFFFF
        self._waiting: dict[int, Callable[[], None]] = {}

    def send(self, target: IPv4Address, answered: Callable[[], None]) -> int:
        """Sends one and returns its token; `answered` is called when the reply arrives."""
        token = next(_tokens)
        self._waiting[token] = answered
        self._socket.send(target, Echo(REQUEST, self._identifier, token & 0xFFFF, token))
        return token

    async def ping(self, target: IPv4Address, timeout: float) -> tuple[int, float | None]:
        """The token of one ping, and the seconds until its reply; None if there was none in time."""
        replied = asyncio.Event()
        end = 0.0

        def answered() -> None:
            nonlocal end
            end = time.perf_counter()
            replied.set()

        start = time.perf_counter()
        token = self.send(target, answered)
        with suppress(TimeoutError):
            await asyncio.wait_for(replied.wait(), timeout)
            return token, end - start
        return token, None

    def _answered(self, _source: IPv4Address, reply: Echo) -> None:
        answered = self._waiting.pop(reply.token, None)
        if answered:
            answered()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Witness:
    """Sees which source address pings have when they arrive in a namespace."""

    def __init__(self, namespace: NetworkNamespace) -> None:
        self._socket = _IcmpSocket(namespace, REQUEST, self._seen)
        self._sources: dict[int, IPv4Address] = {}

    async def source_of(self, token: int) -> IPv4Address | None:
        """The source of a ping that was answered; None if it was answered by somebody else."""
        for _ in range(100):  # its copy is in our socket already; other sockets may come first in the loop
            if token in self._sources:
                return self._sources[token]
            await asyncio.sleep(0)
        return None

    def _seen(self, source: IPv4Address, request: Echo) -> None:
        self._sources[request.token] = source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
