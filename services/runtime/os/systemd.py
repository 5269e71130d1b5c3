"""Notifications to systemd by sd_notify(3), for units of `Type=notify`."""

import os
import socket
from contextlib import suppress


def notify(state: str) -> None:
    """Sends a state such as `READY=1` to systemd, if NOTIFY_SOCKET is set; errors are ignored."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
