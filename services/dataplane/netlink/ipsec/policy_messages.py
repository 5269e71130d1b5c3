"""The kernel's messages of xfrm policies (linux/xfrm.h): what is written, and what a dump or a notification says."""

import struct
from typing import Final

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dump_reader import DumpReader
from flannelette.services.dataplane.netlink.ipsec.values import XfrmPolicy
from flannelette.services.dataplane.netlink.objects import Verb
from flannelette.services.dataplane.netlink.uapi import HEADER, spans

_SELECTOR: Final = struct.Struct("=16s16sHHHHHBBB3xiI")
"""struct xfrm_selector: destination, source, ports with masks, family, prefix lengths, protocol, device, user."""
_LIMITS: Final = struct.pack("=8Q", *(2**64 - 1,) * 4, 0, 0, 0, 0)
"""struct xfrm_lifetime_cfg: no limit of bytes and packets, none of time."""
_USED: Final = struct.Struct("=4Q")
_REST: Final = struct.Struct("=IIBBBB4x")
"""Of struct xfrm_userpolicy_info: priority, index, direction, action, flags, share."""
_TEMPLATE: Final = struct.Struct("=16sIB3xH2x16sIBBBxIII")
"""struct xfrm_user_tmpl: destination, SPI, protocol, family, source, reqid, mode, share, optional, algorithms."""
_ID: Final = struct.Struct("=IB3x")
"""Of struct xfrm_userpolicy_id, behind the selector: index, direction."""
POLICY_BYTES: Final = _SELECTOR.size + len(_LIMITS) + _USED.size + _REST.size

_ESP: Final = 50
_TUNNEL: Final = 1
_ANY_ALGORITHM: Final = 2**32 - 1
_XFRMA_TMPL, _XFRMA_POLICY_TYPE = 5, 16
_FAMILIES: Final = {4: uapi.AF_INET, 16: uapi.AF_INET6}
_SIZES: Final = {af: size for size, af in _FAMILIES.items()}


def policy_message(verb: Verb, item: XfrmPolicy, sequence: int, port: int = 0) -> bytes:
    """Puts a policy, also in the place of one with its selector, or deletes whatever has its selector.

    Notifications of the change carry the port id that the message has, unlike rtnetlink's.
    """
    af, selector = _FAMILIES[len(item.src)], _selector(item)
    if verb == "del":
        return _message(uapi.XFRM_MSG_DELPOLICY, selector + _ID.pack(0, item.direction), sequence, port)
    body = (
        selector
        + _LIMITS
        + _USED.pack(0, 0, 0, 0)
        + _REST.pack(item.priority, 0, item.direction, item.action, 0, 0)
        + (uapi.attribute(_XFRMA_TMPL, _template(item, af)) if item.tunnel_src else b"")
    )
    return _message(uapi.XFRM_MSG_UPDPOLICY, body, sequence, port)


DUMP_REQUEST: Final = uapi.request(uapi.XFRM_MSG_GETPOLICY, bytes(_SELECTOR.size + _ID.size), uapi.NLM_F_DUMP)
"""For all policies, without its number."""


class PolicyReader(DumpReader):
    """Collects the policies of a dump whose selectors are two prefixes."""

    def __init__(self, sequence: int) -> None:
        super().__init__(sequence)
        self.found: list[XfrmPolicy] = []

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        """See DumpReader."""
        policy = policy_at(block, offset + HEADER.size, end)
        if policy is not None:
            self.found.append(policy)


def policy_at(block: bytes, start: int, end: int) -> XfrmPolicy | None:
    """The policy that lies there; None: one of a socket, or one that looks at more than addresses."""
    if start + POLICY_BYTES > end:
        return None
    selected = _selected(block, start)
    at = start + _SELECTOR.size
    limits, (priority, _, direction, action, flags, share) = (
        block[at : at + len(_LIMITS)],
        _REST.unpack_from(block, at + len(_LIMITS) + _USED.size),
    )
    if selected is None or direction > 2:  # from 3 on they are those of a socket
        return None
    rest = b"" if limits == _LIMITS else limits
    rest += bytes((flags, share)) if flags or share else b""
    tunnel: tuple[bytes, bytes, int, bool] = (b"", b"", 0, False)
    for kind, first, last in spans(block, start + POLICY_BYTES, end):
        if kind == _XFRMA_TMPL and last - first >= _TEMPLATE.size:
            dst, _, _, af, src, reqid, _, _, optional, *_ = _TEMPLATE.unpack_from(block, first)
            size = _SIZES.get(af, 16)
            tunnel = src[:size], dst[:size], reqid, bool(optional)
        elif kind != _XFRMA_POLICY_TYPE or any(block[first:last]):
            return None  # of a mark, an xfrm device, a security context or another type: beside ours
    made = XfrmPolicy(direction, *selected, action, priority, *tunnel)
    for kind, first, last in spans(block, start + POLICY_BYTES, end):
        if kind == _XFRMA_TMPL and block[first:last] != _template(made, _FAMILIES[len(made.src)]):
            rest += block[first:last]
    return made._replace(rest=rest) if rest else made


def selected_at(block: bytes, offset: int) -> tuple[int, bytes, int] | None:
    """Direction, and the prefix of the other end, in a notification at `offset`; None: it tells neither."""
    length, kind, _, _, _ = HEADER.unpack_from(block, offset)
    start = offset + HEADER.size
    at = start + (_SELECTOR.size + 4 if kind == uapi.XFRM_MSG_DELPOLICY else POLICY_BYTES - 8)
    if at >= offset + length or (selected := _selected(block, start)) is None:
        return None
    src, src_length, dst, dst_length = selected
    direction = block[at]
    return (direction, dst, dst_length) if direction == 1 else (direction, src, src_length)


def _selected(block: bytes, start: int) -> tuple[bytes, int, bytes, int] | None:
    """Source and destination of the selector there; None: it looks at more than these."""
    dst, src, _, dport, _, sport, af, dst_length, src_length, protocol, ifindex, user = _SELECTOR.unpack_from(
        block, start
    )
    size = _SIZES.get(af)
    if size is None or dport or sport or protocol or ifindex or user:
        return None
    return src[:size], src_length, dst[:size], dst_length


def _selector(item: XfrmPolicy) -> bytes:
    af = _FAMILIES[len(item.src)]
    return _SELECTOR.pack(item.dst, item.src, 0, 0, 0, 0, af, item.dst_length, item.src_length, 0, 0, 0)


def _template(item: XfrmPolicy, af: int) -> bytes:
    algorithms = (_ANY_ALGORITHM,) * 3
    ends = (item.tunnel_dst, 0, _ESP, af, item.tunnel_src)
    return _TEMPLATE.pack(*ends, item.reqid, _TUNNEL, 0, item.is_optional, *algorithms)


def _message(kind: int, body: bytes, sequence: int, port: int) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, uapi.NLM_F_REQUEST | uapi.NLM_F_ACK, sequence, port) + body
