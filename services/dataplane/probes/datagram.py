"""UDP datagrams to a closed port of peers. Each has a socket of its own, which its peer alone can send to."""

import asyncio
import socket
import time
from collections.abc import Callable
from errno import ECONNREFUSED
from functools import partial
from typing import Final

from flannelette.services.core.family import Address, family_of
from flannelette.services.dataplane.probes.echo import Reply
from flannelette.services.dataplane.probes.echo_socket import NEVER_FRAGMENT

PORT: Final = 33_434
"""The first one of traceroute: hardly anything listens there."""
_HEADERS: Final = {4: 28, 6: 48}
"""Bytes of the IP and UDP headers."""


class Datagrams:
    """Sends datagrams, and calls back with those to which the peer has answered that the port is closed."""

    def __init__(self, take: Callable[[Reply, float], None]) -> None:
        self._take = take
        self._sockets: dict[int, socket.socket] = {}

    def send(
        self, address: Address, sequence: int, size: int, *, is_offloaded: bool, source: Address | None = None
    ) -> None:
        """Sends one of `size` bytes with its headers, or of one byte: it may not be fragmented. Raises OSError.

        `source`: an address of this host; None: the kernel chooses one.

        Of a datagram that is written in two parts the kernel computes the checksum itself, whatever the device can.
        """
        family = family_of(address)
        made = socket.socket(family.af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            made.setsockopt(*NEVER_FRAGMENT[family.version])
            if source is not None:
                made.bind((str(source), 0))
            made.connect((str(address), PORT))
            content = bytes(max(size - _HEADERS[family.version], 1))
            if not is_offloaded:
                made.send(content[:1], socket.MSG_MORE)
                content = content[1:]
            made.send(content)
        except BaseException:
            made.close()
            raise
        self._sockets[sequence] = made
        asyncio.get_running_loop().add_reader(made, partial(self._read, sequence, size))

    def forget(self, sequence: int) -> None:
        """Waits no longer for an answer to this one."""
        if (known := self._sockets.pop(sequence, None)) is not None:
            asyncio.get_running_loop().remove_reader(known)
            known.close()

    def close(self) -> None:
        """Closes the sockets of all datagrams."""
        for sequence in tuple(self._sockets):
            self.forget(sequence)

    def _read(self, sequence: int, size: int) -> None:
        """A datagram that came instead is no answer: something listens there."""
        is_refused = self._sockets[sequence].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == ECONNREFUSED
        self.forget(sequence)
        if is_refused:
            self._take(Reply(sequence, size), time.time())
