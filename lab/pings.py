"""Pings from inside a namespace, on raw sockets; and under which address they arrive."""

import asyncio
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from typing import Final, Self

from lab.icmp import KIND_IN_IPV6, REPLY, REQUEST, Echo, decode, decode_ipv6
from lab.netns import NetworkNamespace
from lab.topology import Address

_SOL_RAW: Final = 255
_ICMP_FILTER: Final = 1  # linux/icmp.h: a bit per type that shall not be delivered
_ICMP6_FILTER: Final = 1  # linux/icmpv6.h: the same of 256 types
_SO_RCVBUFFORCE: Final = 33
_IP_MTU_DISCOVER: Final = 10  # linux/in.h
_IPV6_MTU_DISCOVER: Final = 23  # linux/in6.h
_PMTUDISC_DO: Final = 2
_SMALLEST: Final = {4: 36, 6: 56}
"""Bytes of a packet: headers of IP and ICMP, and the token."""
_RECEIVE_BUFFER: Final = 8 << 20  # a busy machine must not look like a lossy network
_AT_ONCE: Final = 64

_tokens = count(1)


class _IcmpSocket:
    """Hands every message of one kind that arrives in a namespace to `received`, with its source."""

    def __init__(
        self, namespace: NetworkNamespace, version: int, kind: int, received: Callable[[Address, Echo], None]
    ) -> None:
        self._is_ipv6 = version == 6
        with namespace.inside():
            if self._is_ipv6:
                self._socket = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
            else:
                self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self._socket.setblocking(False)
        if self._is_ipv6:
            blocked = ~(1 << KIND_IN_IPV6[kind]) & (1 << 256) - 1
            self._socket.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, blocked.to_bytes(32, sys.byteorder))
        else:
            self._socket.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", ~(1 << kind) & 0xFFFF_FFFF))
        with suppress(PermissionError):  # in a user namespace the limits of the machine stay
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        self._received = received
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def send(self, target: Address, message: Echo) -> None:
        """Sends it. What cannot be sent is lost like what does not arrive: no answer will come."""
        with suppress(OSError):
            data = message.encode_for_ipv6() if self._is_ipv6 else message.encode()
            self._socket.sendto(data, (str(target), 0))

    def forbid_fragments(self) -> None:
        """Sets DF in what is sent, so that nobody divides it; what is too large for the first device is not sent."""
        level, option = (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER) if self._is_ipv6 else (0, _IP_MTU_DISCOVER)
        self._socket.setsockopt(level, option, _PMTUDISC_DO)

    def close(self) -> None:
        """Closes the socket, which ends listening."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                data, sender = self._socket.recvfrom(256)
                if self._is_ipv6:
                    message = decode_ipv6(data)
                    decoded = (ip_address(sender[0]), message) if message else None
                else:
                    decoded = decode(data)
                if decoded:
                    self._received(*decoded)


class Pinger:
    """Pings from one namespace, in one address family; with a `size`, of so many bytes, which nobody divides."""

    def __init__(self, namespace: NetworkNamespace, version: int = 4, *, size: int = 0) -> None:
        self._socket = _IcmpSocket(namespace, version, REPLY, self._answered)
        self._padding = max(size - _SMALLEST[version], 0)
        if size:
            self._socket.forbid_fragments()
        self._identifier = int.from_bytes(os.urandom(2))  # of a connection that no firewall knows yet
        self._waiting: dict[int, Callable[[], None]] = {}

    def send(self, target: Address, answered: Callable[[], None]) -> int:
        """Sends one and returns its token; `answered` is called when the reply arrives."""
        token = next(_tokens)
        self._waiting[token] = answered
        self._socket.send(target, Echo(REQUEST, self._identifier, token & 0xFFFF, token, self._padding))
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
        self._socket = _IcmpSocket(namespace, version, REQUEST, self._seen)
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
