"""One dataplane per network namespace."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from services.core.errors import Misconfigured

_NAME: Final = "\0flannelette-dataplane"
"""An abstract unix socket: scoped to the network namespace, gone with the process (unix(7))."""


@contextmanager
def sole_dataplane() -> Iterator[None]:
    """Holds the namespace while the block runs. Raises Misconfigured when another dataplane has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(_NAME)
        except OSError:
            raise Misconfigured(
                "another dataplane runs in this network namespace: stop it first, two would undo each other's work"
            ) from None
        yield
