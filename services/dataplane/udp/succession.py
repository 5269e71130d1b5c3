"""Hands over from one proxy to the next: the new one gets the old one's descriptors over a unix socket, and no packet
is lost.

What waits in the queues of the device and of the UDP socket is read by the new one.
"""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_SECONDS = 5.0


class Estate(NamedTuple):
    """What a proxy has open, and for what."""

    words: str
    """Device, address and port."""
    tun: int
    udp: int
    heirs: int
    """The socket on which the next proxy asks."""


def inherit(path: Path) -> Estate | None:
    """What the proxy there hands over, which then ends; None: there is none, or it is another user's process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(_SECONDS)
        try:
            asking.connect(str(path))
            if not _is_this_user(asking):
                return None
            words, descriptors, _, _ = socket.recv_fds(asking, 256, 3, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        if len(descriptors) != 3:
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        return Estate(words.decode(), *descriptors)


def await_heirs(path: Path) -> int:
    """A socket on which the next proxy asks, which only processes of this user may. Raises OSError."""
    with suppress(FileNotFoundError):
        path.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        listening.bind(str(path))
        listening.listen(1)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening.detach()


def bequeath(estate: Estate) -> bool:
    """Hands everything to the one who asks; False: it is another user's process, or it has gone."""
    with socket.socket(fileno=os.dup(estate.heirs)) as listening, suppress(OSError):
        heir, _ = listening.accept()
        with heir:
            if _is_this_user(heir):
                socket.send_fds(heir, [estate.words.encode()], [estate.tun, estate.udp, estate.heirs])
                return True
    return False


def _is_this_user(connection: socket.socket) -> bool:
    """Whether the process at the other end has our user."""
    _, user, _ = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())
