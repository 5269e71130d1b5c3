"""Hears of routes as the kernel announces them: a netlink listener that shares nothing with the dataplane."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOBUFS
from typing import Final, Self

from bench.result import BenchFailed
from lab.netns import NetworkNamespace

_NEWROUTE, _DELROUTE = 24, 25
_IPV4_ROUTES: Final = 7
"""RTNLGRP_IPV4_ROUTE: the group that hears of IPv4 routes."""
_ADD_MEMBERSHIP, _SOL_NETLINK, _RCVBUFFORCE = 1, 270, 33
_QUEUE_BYTES: Final = 256 << 20
_TYPE: Final = struct.Struct("=4xH")
_ATTRIBUTE: Final = struct.Struct("=HH")
_RTA_DST: Final = 1
_PROTOCOL_AT: Final = 21


@dataclass(frozen=True, slots=True)
class Heard:
    """A notification of one route, and when it came."""

    at: float
    """Time by the clock of time.monotonic()."""
    block: bytes

    @property
    def gone(self) -> bool:
        """Deleted, rather than new or changed."""
        return bool(_TYPE.unpack_from(self.block)[0] == _DELROUTE)

    @property
    def destination(self) -> bytes:
        """Packed, without its length; of the default route nothing."""
        offset = 28
        while offset + 4 <= len(self.block):
            length, kind = _ATTRIBUTE.unpack_from(self.block, offset)
            if kind == _RTA_DST:
                return self.block[offset + 4 : offset + length]
            offset += (length + 3) & ~3
        return b""


class RouteListener:
    """Listens to the IPv4 routes of one protocol in a namespace, from its making on. Close it."""

    def __init__(self, namespace: NetworkNamespace, protocol: int) -> None:
        self._protocol = protocol
        with namespace.inside():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _QUEUE_BYTES)
        self._socket.bind((0, 0))
        self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _IPV4_ROUTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def hear(self, enough: "Callable[[Heard], bool]", patience: float) -> bool:
        """Calls `enough` with each until that is True; False: it was not within so many seconds."""
        try:
            async with asyncio.timeout(patience):
                while True:
                    for heard in await self._receive():
                        if enough(heard):
                            return True
        except TimeoutError:
            return False

    async def count(self, routes: int, patience: float) -> float:
        """When the last of so many new routes was heard of. Raises BenchFailed if they do not come."""
        found: list[Heard] = []

        def enough(heard: Heard) -> bool:
            found.append(heard)
            return len(found) >= routes

        if not await self.hear(enough, patience):
            raise BenchFailed(f"{len(found)} of {routes} routes came within {patience:g} s")
        return found[-1].at

    async def _receive(self) -> list[Heard]:
        """What waits, at least one datagram; the kernel puts one route into each."""
        loop, heard = asyncio.get_running_loop(), []
        try:
            block = await loop.sock_recv(self._socket, 4096)
            while True:
                if block[_PROTOCOL_AT] == self._protocol and _TYPE.unpack_from(block)[0] in (_NEWROUTE, _DELROUTE):
                    heard.append(Heard(time.monotonic(), block))
                if len(heard) >= 256:
                    return heard
                block = self._socket.recv(4096)
        except BlockingIOError:
            return heard
        except OSError as error:
            if error.errno != ENOBUFS:
                raise
            raise BenchFailed("the listener could not keep up with the kernel") from None
