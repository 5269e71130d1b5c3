"""A socket filter for notifications: what nobody would look at is dropped in the kernel and wakes no process.

To program 10,000 peers makes 30,000 notifications. Classic BPF (linux/filter.h), which reads numbers in network
order; the kernel puts each notification into a packet of its own.
"""

import ctypes
import socket
import struct
from collections.abc import Sequence
from typing import Final

from services.dataplane.netlink import uapi

_SO_ATTACH_FILTER: Final = 26
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x28, 0x30, 0x15, 0x06
_EVERYTHING: Final = 0xFFFF_FFFF
_TYPE_AT: Final = 4
_PORT_AT: Final = 12
_FAMILY_AT: Final = 16

Instruction = tuple[int, int, int, int]
"""Code, how many to skip if it is true, and if not, operand."""


def ignore(opened: socket.socket, port: int) -> None:
    """From now on the socket does not hear what the socket with this port id does, nor of new forwarding entries.

    Of those nobody tells who made them (see `Change.port`), and nearly all are our own; of those that go it hears.
    """
    _attach(
        opened,
        (
            (_LOAD_WORD, 0, 0, _PORT_AT),
            (_JUMP_IF_EQUAL, 5, 0, _in_network_order("=I", port)),
            (_LOAD_HALF, 0, 0, _TYPE_AT),
            (_JUMP_IF_EQUAL, 0, 2, _in_network_order("=H", uapi.RTM_NEWNEIGH)),
            (_LOAD_BYTE, 0, 0, _FAMILY_AT),
            (_JUMP_IF_EQUAL, 1, 0, uapi.AF_BRIDGE),
            (_RETURN, 0, 0, _EVERYTHING),
            (_RETURN, 0, 0, 0),
        ),
    )


def _in_network_order(layout: str, value: int) -> int:
    """A number that lies there in host order, as BPF reads it."""
    return int.from_bytes(struct.pack(layout, value), "big")


def _attach(opened: socket.socket, program: Sequence[Instruction]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
