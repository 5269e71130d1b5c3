"""The number of a family of generic netlink, by which messages are addressed to it."""

import struct
import sys
from functools import partial
from typing import Final

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dump_reader import ANY_REFUSAL, DumpReader, complete
from flannelette.services.dataplane.netlink.raw_socket import RawTransport
from flannelette.services.dataplane.netlink.uapi import HEADER, spans

GENL: Final = struct.Struct("=BBH")
"""Command, version."""
_CONTROL: Final = 16
"""GENL_ID_CTRL."""
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2


async def find_family(transport: RawTransport, name: str) -> int:
    """The number; 0: the kernel has no such family, or has not loaded its module. Raises Unavailable.

    By a dump of all families: to ask for one by its name would have its module loaded.
    """
    request = uapi.request(_CONTROL, GENL.pack(_GET_FAMILY, 1, 0), uapi.NLM_F_DUMP)
    reader = partial(FamilyReader, name)
    return (await complete(transport, request, reader, "families of generic netlink", ANY_REFUSAL)).number


class FamilyReader(DumpReader):
    """Finds a family in a dump of all."""

    def __init__(self, name: str, sequence: int) -> None:
        super().__init__(sequence)
        self.number = 0
        self._name = name.encode() + b"\0"

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        """See DumpReader."""
        found = {key: block[first:last] for key, first, last in spans(block, offset + HEADER.size + GENL.size, end)}
        if found.get(_FAMILY_NAME) == self._name:
            self.number = int.from_bytes(found.get(_FAMILY_ID, b""), sys.byteorder)
