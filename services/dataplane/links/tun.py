"""TUN devices: made by an ioctl, and kept while no process has them open."""

import fcntl
import os
import struct
from typing import Final

_TUNSETIFF: Final = 0x400454CA
_TUNSETPERSIST: Final = 0x400454CB
_IFF_TUN_NO_PI: Final = 0x1001
"""Packets as they are, without a header (linux/if_tun.h)."""

_CURE: Final = (
    "load its module (`modprobe tun`), and in a container let the device in; or `modprobe fou`, so that the kernel "
    "carries the packets, and restart the dataplane"
)


def open_tun(name: str) -> int:
    """A descriptor of the device, which is made if it is missing, and stays when the descriptor is closed.

    Raises OSError: EBUSY if another process has it open.
    """
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, f"/dev/net/tun: {error.strerror}; {_CURE}") from None
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_tun(name: str) -> None:
    """Makes a device that stays. Raises OSError."""
    os.close(open_tun(name))
