"""The actuator of xfrm policies, over xfrm netlink (linux/xfrm.h): its messages, what is there, a plan carried out,
and what others change.
"""

import socket
import struct
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from errno import ENOENT
from typing import Final, NamedTuple

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject
from flannelette.services.dataplane.netlink.object_text import refusal
from flannelette.services.dataplane.netlink.objects import (
    DIR_OUT,
    REQID,
    XFRM_POLICY,
    KernelObject,
    Plan,
    Verb,
    XfrmPolicy,
)
from flannelette.services.dataplane.netlink.raw_socket import (
    LOST,
    Closing,
    DumpReader,
    NoSuchProtocol,
    RawTransport,
    applied,
    complete,
    drain,
    dumped,
    enlarge_queue,
    ignore,
    open_netlink,
)
from flannelette.services.dataplane.netlink.uapi import HEADER, spans

_SELECTOR: Final = struct.Struct("=16s16sHHHHHBBB3xiI")
"""struct xfrm_selector: destination, source, ports with masks, family, prefix lengths, protocol, device, user."""
_LIMITS: Final = struct.pack("=8Q", *(2**64 - 1,) * 4, 0, 0, 0, 0)
"""struct xfrm_lifetime_cfg: no limit of bytes and packets, none of time."""
_USED: Final = struct.Struct("=4Q")
_REST: Final = struct.Struct("=IIBBBB4x")
"""The last fields of struct xfrm_userpolicy_info: priority, index, direction, action, flags, share."""
_TEMPLATE: Final = struct.Struct("=16sIB3xH2x16sIBBBxIII")
"""struct xfrm_user_tmpl: destination, SPI, protocol, family, source, reqid, mode, share, optional, algorithms."""
_ID: Final = struct.Struct("=IB3x")
"""What struct xfrm_userpolicy_id has after the selector: index, direction."""
POLICY_BYTES: Final = _SELECTOR.size + len(_LIMITS) + _USED.size + _REST.size

_ESP: Final = 50
_TUNNEL: Final = 1
_ANY_ALGORITHM: Final = 2**32 - 1
_XFRMA_TMPL, _XFRMA_POLICY_TYPE = 5, 16
_FAMILIES: Final = {4: uapi.AF_INET, 16: uapi.AF_INET6}
_SIZES: Final = {af: size for size, af in _FAMILIES.items()}


def policy_message(verb: Verb, item: XfrmPolicy, port: int = 0) -> bytes:
    """Puts a policy, also in the place of one with its selector, or deletes whatever has its selector.

    Notifications of the change carry the port id that the message has, unlike rtnetlink's.
    """
    af, selector = _FAMILIES[len(item.src)], _selector(item)
    if verb == "del":
        return _message(uapi.XFRM_MSG_DELPOLICY, selector + _ID.pack(0, item.direction), port)
    body = (
        selector
        + _LIMITS
        + _USED.pack(0, 0, 0, 0)
        + _REST.pack(item.priority, 0, item.direction, item.action, 0, 0)
        + (uapi.attribute(_XFRMA_TMPL, _template(item, af)) if item.tunnel_src else b"")
    )
    return _message(uapi.XFRM_MSG_UPDPOLICY, body, port)


DUMP_REQUEST: Final = uapi.request(uapi.XFRM_MSG_GETPOLICY, bytes(_SELECTOR.size + _ID.size), uapi.NLM_F_DUMP)
"""A request for all policies, without its number."""


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


def _message(kind: int, body: bytes, port: int) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, uapi.NLM_F_REQUEST | uapi.NLM_F_ACK, 0, port) + body


_INFO_BYTES: Final = 224
"""Size of struct xfrm_usersa_info."""
_WHERE: Final = struct.Struct("=16s4sB3x16s")
"""Fields of struct xfrm_usersa_info at 56: destination, SPI, protocol, source."""
_WHICH: Final = struct.Struct("=IHB")
"""Fields of struct xfrm_usersa_info at 208: reqid, family, mode."""
_STATE_ID: Final = struct.Struct("=16s4sHBx")
"""struct xfrm_usersa_id: destination, SPI, family, protocol."""
_XFRMA_MARK: Final = 21


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
"""A request for a dump of all states, without its number."""


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


def delete_state(item: XfrmState) -> bytes:
    """The message that deletes it."""
    body = _STATE_ID.pack(item.dst, item.spi, item.family, _ESP)
    body += uapi.attribute(_XFRMA_MARK, item.mark) if item.mark else b""
    return uapi.request(uapi.XFRM_MSG_DELSA, body, uapi.NLM_F_ACK)


_AT_ONCE: Final = 60
"""Messages in one send, about 16 KiB."""
_NO_MODULE: Final = "the kernel has no IPsec: load its modules with `modprobe -a xfrm_user esp4`, or use wireguard"
_QUEUE_BYTES: Final = 1024 * 1024
_RECEIVE_BYTES: Final = 64 * 1024
_GROUP_POLICY: Final = 4
"""XFRMNLGRP_POLICY: the group that gets notifications of policies."""
_TELLING: Final = {
    uapi.XFRM_MSG_NEWPOLICY: False,
    uapi.XFRM_MSG_UPDPOLICY: False,
    uapi.XFRM_MSG_DELPOLICY: True,
    uapi.XFRM_MSG_FLUSHPOLICY: True,
    uapi.XFRM_MSG_POLEXPIRE: True,
}
"""Whether a notification tells that a policy is gone."""


class PolicySocket(Closing):
    """One socket of xfrm netlink, for one event loop; as `KernelSocket`, for policies.

    Knows ours by their reqid or priority, and those that a flanneld may have made. A kernel without xfrm has none.
    """

    kinds: Final = frozenset((XFRM_POLICY,))

    def __init__(self) -> None:
        self._transport = _opened()

    def close(self) -> None:
        """Ends it; nothing in the kernel changes."""
        if self._transport is not None:
            self._transport.close()

    @property
    def port(self) -> int:
        """The port id of our socket, which notifications of our own changes carry; 0: there is no socket."""
        return self._transport.port if self._transport is not None else 0

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """See PartActuator."""
        if self._transport is None:
            return Contents(frozenset(), frozenset())
        reader = await complete(self._transport, DUMP_REQUEST, PolicyReader, "xfrm policies", (ENOENT,))
        return Contents(frozenset(), frozenset(p for p in reader.found if p.is_marked or p.is_like_flannels))

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See PartActuator. What is allowed is put before what is blocked, and deleted after it."""
        self._transport = self._transport or _opened()
        put = sorted((item for item in plan.put if isinstance(item, XfrmPolicy)), key=_order)
        delete = sorted((item for item in plan.delete if isinstance(item, XfrmPolicy)), key=_order, reverse=True)
        if self._transport is None:
            return dict.fromkeys(put, _NO_MODULE)
        failures = await self._send(self._transport, "replace", put)
        return failures | await self._send(self._transport, "del", delete)

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """See PartActuator. The states of tunnels between two nodes go with the last policy that names these nodes.

        charon has ended its own by then: what is left is what a charon that was killed has made.
        """
        gone = {_ends(item) for item in plan.delete if isinstance(item, XfrmPolicy) and item.tunnel_src}
        if self._transport is None or not gone:
            return
        kept = (await self.contents(())).on_devices
        gone -= {_ends(item) for item in kept if isinstance(item, XfrmPolicy) and item.tunnel_src}
        states = (await dumped(self._transport, STATES_REQUEST, StateReader)).found
        ours = ((each, delete_state(each)) for each in states if each.ends in gone)
        await applied(self._transport, ours, _AT_ONCE)  # those that stay expire

    async def _send(
        self, transport: RawTransport, verb: Verb, items: Iterable[XfrmPolicy]
    ) -> dict[KernelObject, str]:
        changes = ((item, policy_message(verb, item, transport.port)) for item in items)
        refused = await applied(transport, changes, _AT_ONCE)
        return {
            item: refusal(why.error, why.detail) if why else LOST
            for item, why in refused.items()
            if not (why and verb == "del" and why.error == ENOENT)
        }


class PolicyEvents(Closing):
    """A socket that hears of changes of policies by others; nothing where the kernel has no xfrm."""

    def __init__(self, own_port: int) -> None:
        self.opened: socket.socket | None = None
        with suppress(NoSuchProtocol):
            self.opened = open_netlink(uapi.NETLINK_XFRM)
            enlarge_queue(self.opened, _QUEUE_BYTES)
            self.opened.bind((0, 0))
            ignore(self.opened, own_port)
            with suppress(PermissionError):  # without NET_ADMIN, with which the service ends right after
                self.opened.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, _GROUP_POLICY)

    def close(self) -> None:
        """See Closing."""
        if self.opened is not None:
            self.opened.close()

    def waiting(self) -> list[Change]:
        """What is told and not read yet."""
        found: list[Change] = []
        while self.opened is not None:
            try:
                found += policy_changes(self.opened.recv(_RECEIVE_BYTES))
            except BlockingIOError:
                break
            except OSError:
                drain(self.opened)
                found.append(Change(ChangedObject.OVERRUN))
                break
        return found


def policy_changes(block: bytes) -> list[Change]:
    """The changes that a datagram reports: of a policy, the prefix of its other end; of a flush, everywhere."""
    found, offset = [], 0
    while offset + HEADER.size <= len(block):
        length, kind, _, _, port = HEADER.unpack_from(block, offset)
        if length < HEADER.size or offset + length > len(block):
            break
        if kind == uapi.XFRM_MSG_FLUSHPOLICY:
            found.append(Change(ChangedObject.POLICY, gone=True, port=port))
        elif kind in _TELLING and (told := selected_at(block, offset)) is not None:
            _, prefix, bits = told
            af = uapi.AF_INET if len(prefix) == 4 else uapi.AF_INET6
            gone = _TELLING[kind]
            found.append(Change(ChangedObject.POLICY, gone, af, port=port, dst=prefix, length=bits))
        offset += (length + 3) & ~3
    return found


def _ends(item: XfrmPolicy) -> frozenset[bytes]:
    return frozenset((item.tunnel_src, item.tunnel_dst))


def _order(item: XfrmPolicy) -> tuple[bool, int, bool]:
    """Sorts policies without a tunnel before the others, allowed before blocked; what comes in before
    what goes out.
    """
    return bool(item.tunnel_src), item.action, item.direction == DIR_OUT


def _opened() -> RawTransport | None:
    try:
        return RawTransport(protocol=uapi.NETLINK_XFRM)
    except NoSuchProtocol:
        return None
