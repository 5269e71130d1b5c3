"""The number of a family of generic netlink, by which messages are addressed to it."""

import struct
import sys
from typing import Final

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.raw_socket import RawTransport
from flannelette.services.dataplane.netlink.uapi import HEADER, messages, spans

GENL: Final = struct.Struct("=BBH")
"""Command, version."""
_CONTROL: Final = 16
"""GENL_ID_CTRL."""
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2


async def find_family(transport: RawTransport, name: str) -> int:
    """The number; 0: the kernel has no such family, or has not loaded its module. Raises AnswersLost.

    By a dump of all families: to ask for one by its name would have its module loaded.
    """
    reader = _FamilyReader(name, transport.reserve(1))
    request = uapi.request(_CONTROL, GENL.pack(_GET_FAMILY, 1, 0), uapi.NLM_F_DUMP)
    await transport.dump(uapi.numbered(request, reader.sequence), reader.take)
    return reader.number


class _FamilyReader:
    """Takes the datagrams of the dump."""

    def __init__(self, name: str, sequence: int) -> None:
        self.number = 0
        self.sequence = sequence
        self._name = name.encode() + b"\0"

    def take(self, block: bytes) -> bool:
        """Reads one datagram; True: the dump is complete, or refused."""
        for message in messages(block):
            _, kind, _, sequence, _ = HEADER.unpack_from(message)
            if sequence == self.sequence and kind in (uapi.NLMSG_DONE, uapi.NLMSG_ERROR):
                return True
            start = HEADER.size + GENL.size
            found = {kind: message[first:last] for kind, first, last in spans(message, start, len(message))}
            if found.get(_FAMILY_NAME) == self._name:
                self.number = int.from_bytes(found.get(_FAMILY_ID, b""), sys.byteorder)
        return False
