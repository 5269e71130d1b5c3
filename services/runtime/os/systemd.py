"""What systemd is told: sd_notify(3), for units of `Type=notify`."""

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Says `READY=1` or the like; nothing when systemd did not ask for it, and no error when it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
