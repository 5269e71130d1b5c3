"""What systemd is told of a start: that it has ended, in time, and what the service waits for (ADR 60)."""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


def notify(state: str) -> None:
    """Sends a state such as `READY=1` to systemd, if NOTIFY_SOCKET is set; errors are ignored."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


START_SECONDS: Final = 60.0
"""How long a start, and with it `systemctl start` and the boot, waits for a service that is not ready."""


class StartNotice:
    """Tells systemd once that the service has started: when it has, or START_SECONDS after this object was made."""

    def __init__(self, seconds: float = START_SECONDS) -> None:
        self._is_given = False
        self._late = asyncio.get_running_loop().call_later(seconds, self._give_late, seconds)

    def give(self) -> None:
        """Sends `READY=1`, the first time."""
        if not self._is_given:
            self._is_given = True
            self._late.cancel()
            notify("READY=1")

    def _give_late(self, seconds: float) -> None:
        if "NOTIFY_SOCKET" in os.environ:
            log.warning(f"not ready after {seconds:g} s: systemd waits no longer, and the service goes on")
        self.give()


def notify_status(reasons: Sequence[str]) -> None:
    """What `systemctl status` shows: why the service is not ready, or that it is."""
    text = "; ".join(reasons)
    notify("STATUS=" + (f"not ready: {text}" if text else "ready").replace("\n", " "))
