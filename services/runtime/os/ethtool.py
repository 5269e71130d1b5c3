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
