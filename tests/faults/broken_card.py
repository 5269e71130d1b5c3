"""A network card that does not complete checksums inside a tunnel, though it says so: `broken_card.py FROM TO`.

What leaves by the interface at the other end of FROM is sent by TO. The kernel says of each packet where the checksum
begins that is left to the card (packet(7), PACKET_VNET_HDR): those of the outer header are completed, those behind
it stay as they are, as cards do that do not know the tunnel.
"""

import socket
import struct
import sys

_HEADER = struct.Struct("=BBHHHH")
"""virtio_net_hdr: flags, GSO type, header length, GSO size, start and offset of the checksum."""
_PACKET, _VNET_HDR = 263, 15
_ALL = 3
_OUTER = 14 + 40
"""Where the checksum begins at most that is not inside a tunnel: behind Ethernet and IPv6."""


def _open(interface: str, protocol: int) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(_PACKET, _VNET_HDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1)  # what the fault does not divert again
    made.bind((interface, protocol))
    return made


def _main() -> None:
    source, target = _open(sys.argv[1], _ALL), _open(sys.argv[2], 0)
    while True:
        packet = source.recv(1 << 17)
        start = _HEADER.unpack_from(packet)[4]
        target.send(packet if start <= _OUTER else bytes(_HEADER.size) + packet[_HEADER.size :])


if __name__ == "__main__":
    _main()
