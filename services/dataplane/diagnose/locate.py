"""Asks by ARP who has an address on the pods' bridge, and by which of its ports the answer comes.

The kernel asks for no neighbour that a program has set, and does not tell ports.
"""

import asyncio
import socket
import struct
from collections.abc import Collection
from typing import Final

from flannelette.services.dataplane.capture import attach

_ALL_TYPES, _ARP = 0x0003, 0x0806  # ETH_P_
_HEADER: Final = struct.Struct(">6s6sH")
_PACKET: Final = struct.Struct(">HHBBH6s4s6s4s")
_EVERYBODY: Final = b"\xff" * 6
_REQUEST, _REPLY = 1, 2
_SECONDS: Final = 0.2
"""A pod of this host answers in a millisecond; one that is busy later."""
_ONLY_ARP: Final = ((0x28, 0, 0, 12), (0x15, 0, 1, _ARP), (0x06, 0, 0, 0x40), (0x06, 0, 0, 0))


async def locate(
    bridge: str, mac: bytes, source: bytes, addresses: Collection[bytes]
) -> dict[bytes, tuple[bytes, int]]:
    """The MAC of each address that answers, and the index of the interface by which the answer has come first."""
    found = dict[bytes, tuple[bytes, int]]()
    if not addresses:
        return found
    try:
        # Of all interfaces: a port has the frame before its bridge.
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_TYPES)) as asking:
            attach(asking, _ONLY_ARP)
            asking.setblocking(False)
            for each in addresses:
                packet = _PACKET.pack(1, 0x0800, 6, 4, _REQUEST, mac, source, bytes(6), each)
                asking.sendto(_HEADER.pack(_EVERYBODY, mac, _ARP) + packet, (bridge, _ARP))
            async with asyncio.timeout(_SECONDS):
                await _receive(asking, addresses, found)
    except (OSError, TimeoutError):
        pass  # what has not answered is not known
    return found


async def _receive(
    asking: socket.socket, addresses: Collection[bytes], found: dict[bytes, tuple[bytes, int]]
) -> None:
    loop = asyncio.get_running_loop()
    while len(found) < len(addresses):
        frame, (name, _, kind, *_) = await loop.sock_recvfrom(asking, 64)
        is_arp = len(frame) >= _HEADER.size + _PACKET.size and _HEADER.unpack_from(frame)[2] == _ARP
        if kind == socket.PACKET_OUTGOING or not is_arp:
            continue
        *_, operation, mac, address, _, _ = _PACKET.unpack_from(frame, _HEADER.size)
        if operation == _REPLY and address in addresses and address not in found:
            found[address] = mac, socket.if_nametoindex(name)
