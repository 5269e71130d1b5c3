"""The kernel's messages of xfrm states (linux/xfrm.h), as far as states that nobody needs any more are deleted."""

import struct
from typing import Final, NamedTuple

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dump_reader import DumpReader
from flannelette.services.dataplane.netlink.ipsec.values import REQID
from flannelette.services.dataplane.netlink.uapi import HEADER, spans

_INFO_BYTES: Final = 224
"""struct xfrm_usersa_info."""
_WHERE: Final = struct.Struct("=16s4sB3x16s")
"""In it, at 56: destination, SPI, protocol, source."""
_WHICH: Final = struct.Struct("=IHB")
"""At 208: reqid, family, mode."""
_ID: Final = struct.Struct("=16s4sHBx")
"""struct xfrm_usersa_id: destination, SPI, family, protocol."""
_ESP: Final = 50
_TUNNEL: Final = 1
_XFRMA_MARK: Final = 21
_SIZES: Final = {uapi.AF_INET: 4, uapi.AF_INET6: 16}


class XfrmState(NamedTuple):
    """One direction of an ESP tunnel with our reqid."""

    src: bytes
    dst: bytes
    spi: bytes
    family: int
    mark: bytes

    @property
    def ends(self) -> frozenset[bytes]:
        """The addresses of the two nodes."""
        return frozenset((self.src, self.dst))


STATES_REQUEST: Final = uapi.request(uapi.XFRM_MSG_GETSA, b"", uapi.NLM_F_DUMP)
"""For a dump of all states, without its number."""


class StateReader(DumpReader):
    """Collects the states of a dump with our reqid that carry packets."""

    def __init__(self, sequence: int) -> None:
        super().__init__(sequence)
        self.found: list[XfrmState] = []

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        """See DumpReader."""
        info = offset + HEADER.size
        if kind != uapi.XFRM_MSG_NEWSA or end < info + _INFO_BYTES:
            return
        dst, spi, protocol, src = _WHERE.unpack_from(block, info + 56)
        reqid, family, mode = _WHICH.unpack_from(block, info + 208)
        size = _SIZES.get(family, 16)
        if (reqid, protocol, mode) == (REQID, _ESP, _TUNNEL) and any(spi):
            attributes = spans(block, info + _INFO_BYTES, end)
            mark = next((block[first:last] for key, first, last in attributes if key == _XFRMA_MARK), b"")
            self.found.append(XfrmState(src[:size], dst[:size], spi, family, mark))


def delete_state(item: XfrmState, sequence: int) -> bytes:
    """The message that deletes it."""
    body = _ID.pack(item.dst, item.spi, item.family, _ESP)
    body += uapi.attribute(_XFRMA_MARK, item.mark) if item.mark else b""
    flags = uapi.NLM_F_REQUEST | uapi.NLM_F_ACK
    return HEADER.pack(HEADER.size + len(body), uapi.XFRM_MSG_DELSA, flags, sequence, 0) + body
