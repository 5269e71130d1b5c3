"""Pings from inside a namespace, on raw sockets; and under which address they arrive."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import Final, Self

from flannelette.services.core.family import FAMILIES, IPV6, Family
from flannelette.services.dataplane.probes.sockets import REPLY, REQUEST, Echo, echo_in, open_echo_socket, request
from lab.netns import NetworkNamespace
from lab.topology import Address

_SO_RCVBUFFORCE: Final = 33
_IP_MTU_DISCOVER: Final = 10  # linux/in.h
_IPV6_MTU_DISCOVER: Final = 23  # linux/in6.h
_PMTUDISC_DO: Final = 2
_RECEIVE_BUFFER: Final = 8 << 20  # a busy machine must not look like a lossy network
_AT_ONCE: Final = 64
_FAMILIES: Final = {family.version: family for family in FAMILIES}

_tokens = count(1)


class _IcmpSocket:
    """Hands every message of one kind that arrives in a namespace to `received`, with its source."""

    def __init__(
        self, namespace: NetworkNamespace, family: Family, kind: int, received: Callable[[Address, Echo], None]
    ) -> None:
        self._family = family
        with namespace.inside():
            self._socket = open_echo_socket(family, kind)
        with suppress(PermissionError):  # in a user namespace the limits of the machine stay
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        self._received = received
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def send(self, target: Address, message: bytes) -> None:
        """Sends it. What cannot be sent is lost like what does not arrive: no answer will come."""
        with suppress(OSError):
            self._socket.sendto(message, (str(target), 0))

    def forbid_fragments(self) -> None:
        """Sets DF in what is sent, so that nobody divides it; what is too large for the first device is not sent."""
        level, option = (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER) if self._family is IPV6 else (0, _IP_MTU_DISCOVER)
        self._socket.setsockopt(level, option, _PMTUDISC_DO)

    def close(self) -> None:
        """Closes the socket, which ends listening."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                data, sender = self._socket.recvfrom(256)
                if (message := echo_in(self._family, data)) is not None:
                    self._received(ip_address(sender[0]), message)


class Pinger:
    """Pings from one namespace, in one address family; with a `size`, of so many bytes, which nobody divides."""

    def __init__(self, namespace: NetworkNamespace, version: int = 4, *, size: int = 0) -> None:
        self._family, self._size = _FAMILIES[version], size
        self._socket = _IcmpSocket(namespace, self._family, REPLY[version], self._answered)
        if size:
            self._socket.forbid_fragments()
        self._identifier = int.from_bytes(os.urandom(2))  # of a connection that no firewall knows yet
        self._waiting: dict[int, Callable[[], None]] = {}

    def send(self, target: Address, answered: Callable[[], None]) -> int:
        """Sends one and returns its token; `answered` is called when the reply arrives."""
        token = next(_tokens)
        self._waiting[token] = answered
        self._socket.send(target, request(self._family, self._identifier, token, token & 0xFFFF, self._size))
        return token

    async def ping(self, target: Address, timeout: float) -> tuple[int, float | None]:
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
        # Where this process had no processor for that long, the reply may be there although the time is up.
        return token, end - start if replied.is_set() else None

    def _answered(self, _source: Address, reply: Echo) -> None:
        answered = self._waiting.pop(reply.token, None)
        if answered:
            answered()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Witness:
    """Sees which source address pings have when they arrive in a namespace."""

    def __init__(self, namespace: NetworkNamespace, version: int = 4) -> None:
        self._socket = _IcmpSocket(namespace, _FAMILIES[version], REQUEST[version], self._seen)
        self._sources: dict[int, Address] = {}

    async def source_of(self, token: int) -> Address | None:
        """The source of a ping that was answered; None if it was answered by somebody else."""
        for _ in range(100):  # its copy is in our socket already; other sockets may come first in the loop
            if token in self._sources:
                return self._sources[token]
            await asyncio.sleep(0)
        return None

    def _seen(self, source: Address, request: Echo) -> None:
        self._sources[request.token] = source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
