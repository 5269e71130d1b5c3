"""Whether a device computes checksums of what it sends (tx-checksum-ip-generic), by the ethtool ioctl."""

import array
import fcntl
import socket
import struct
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GTXCSUM: Final = 0x16
_ETHTOOL_STXCSUM: Final = 0x17
_VALUE: Final = struct.Struct("=II")
_FIRST_GOOD: Final = (5, 7)
"""Linux 5.7 (ea64d8d6c675): before, masquerading turned the absent checksum of a VXLAN packet into a wrong one."""


def wanted_offload(word: str, kernel_release: str) -> bool | None:
    """What `auto`, `on` or `off` means on a kernel like `6.18.5-cloud`; None: let it be."""
    if word != "auto":
        return word == "on"
    numbers = [int(part) if part.isdecimal() else 0 for part in kernel_release.split(".")[:2]]
    return False if tuple(numbers) < _FIRST_GOOD else None


def checksum_offload(device: str) -> bool | None:
    """Whether it is on; None if the device does not tell, or is not there."""
    try:
        return bool(_ask(device, _ETHTOOL_GTXCSUM, 0))
    except OSError:
        return None


def set_checksum_offload(device: str, *, on: bool) -> None:
    """Turns it on or off. Raises OSError."""
    _ask(device, _ETHTOOL_STXCSUM, int(on))


def _ask(device: str, command: int, value: int) -> int:
    data = array.array("B", _VALUE.pack(command, value))
    request = struct.pack("@16sP16x", device.encode(), data.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    answer: int = _VALUE.unpack(data.tobytes())[1]
    return answer
