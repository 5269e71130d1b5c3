"""Watches a FOU port, as the kernel reports no change of one."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.netlink.fou.ports import FouPorts
from flannelette.services.dataplane.netlink.fou.values import FouPort

_LOOK_SECONDS: Final = 0.5
_MOST_SECONDS: Final = 30.0
_TAKEN_SECONDS: Final = 0.02


async def watch_port(address: str, port: int, audit: Callable[[], None]) -> None:
    """Watches the port until cancelled; has everything compared when the port is missing and can be made.

    While another program has the UDP port, that is as soon as it is free.
    """
    wanted, pause = FouPort(ip_address(address).packed, port, 0), _LOOK_SECONDS
    with FouPorts() as kernel:
        while True:
            with suppress(Unavailable):
                if any(row.is_like(wanted) for row in await kernel.rows()):
                    pause = _LOOK_SECONDS
                else:
                    while not _is_free(address, port):  # noqa: ASYNC110 - nothing tells it
                        await asyncio.sleep(_TAKEN_SECONDS)
                    audit()
                    pause = min(2 * pause, _MOST_SECONDS)  # while something else is in the way
            await asyncio.sleep(pause)


def _is_free(address: str, port: int) -> bool:
    """Whether a socket can have the port. A missing local address does not count against it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    return True
