"""TCP ports of the loopback for servers of tests."""

import os
import socket
from contextlib import suppress
from itertools import cycle
from typing import Final

_GIVEN: Final = range(10_000, 32_768)
"""Below those that the kernel gives to connections: one of these could come first, or be connected to itself."""
_numbers = cycle(_GIVEN[os.getpid() % 20_000 :])


def free_port() -> int:
    """One that nobody listens on, and that was not given lately."""
    while True:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", number := next(_numbers)))
            return number
