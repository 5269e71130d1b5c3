"""Says that something changed in the kernel, and by whom; what everything is now, a dump tells.

The kernel does not tell everything: `ip link set down`, `ip link del` and removing an address take IPv4 routes
away without a DELROUTE each, so a change of a link or an address must lead to a look at everything.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from enum import Enum
from errno import ENOBUFS
from typing import Final, Protocol

from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dumps import FDB_ENTRIES, NEIGHBOURS, Reader, fields_of
from flannelette.services.dataplane.netlink.objects import DROPS, RT_TABLE_MAIN, FdbEntry, KernelObject, Neighbour
from flannelette.services.dataplane.netlink.raw_socket import Closing, drain, enlarge_queue, ignore, open_netlink
from flannelette.services.dataplane.netlink.uapi import spans

_GROUPS: Final = (
    uapi.RTNLGRP_LINK,
    uapi.RTNLGRP_NEIGH,
    uapi.RTNLGRP_IPV4_IFADDR,
    uapi.RTNLGRP_IPV4_ROUTE,
    uapi.RTNLGRP_IPV6_IFADDR,
    uapi.RTNLGRP_IPV6_ROUTE,
    uapi.RTNLGRP_IPV4_RULE,
    uapi.RTNLGRP_IPV6_RULE,
    uapi.RTNLGRP_IPV4_NETCONF,
    uapi.RTNLGRP_IPV6_NETCONF,
)
_RECEIVE_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 256
"""Datagrams, of one notification each."""
QUEUE_BYTES: Final = 8 * 1024 * 1024
_ROUTE_HEADER_BYTES: Final = 12
_NEIGHBOUR_HEADER_BYTES: Final = 12
_NETCONF_HEADER_BYTES: Final = 4
"""Size of struct netconfmsg, with its padding."""
_IFINDEX: Final = struct.Struct("=i")
_NEIGHBOUR_STATE: Final = struct.Struct("=H")
"""The state in struct ndmsg, after the device."""
_LINK: Final = struct.Struct("=iII")
"""The part of struct ifinfomsg with the device, its flags, and those that have changed."""
_LINK_BYTES: Final = 32


class ChangedObject(Enum):
    """The kind of object that a notification is about."""

    LINK = "link"
    ADDRESS = "address"
    ROUTE = "route"
    NEIGHBOUR = "neighbour"
    FDB_ENTRY = "forwarding entry"
    RULE = "rule of policy routing"
    NETCONF = "setting of an interface, as forwarding"
    POLICY = "xfrm policy"
    OVERRUN = "anything: the kernel reported more than we could take, and dropped it"


@frozen
class Change:
    """A notification of the kernel: an object is new, changed or deleted."""

    subject: ChangedObject
    gone: bool = False
    """Deleted, rather than new or changed."""
    family: int = 0
    """AF number; of a route, address or neighbour."""
    ifindex: int = 0
    """The object's device; 0: none, or a route over several."""
    protocol: int = 0
    """The origin of a route (RTPROT_*)."""
    port: int = 0
    """Port id of the socket that caused it (`KernelSocket.port` for our own); 0: the kernel itself.

    VXLAN reports 0 for forwarding entries of every program, and so does the end of every neighbour.
    """
    dst: bytes = b""
    """The destination of a route, as `Route` has it, but empty for a default route; the other end of a policy."""
    length: int = 0
    """The bits of a route's `dst` that count; 0: the route leads everywhere."""
    is_main: bool = False
    """Whether a route is in the main table."""
    drops: bool = False
    """Routes only: the type drops packets (blackhole, prohibit and the like)."""
    key: Hashable = None
    """The identity of a neighbour or forwarding entry that is gone, or not permanent, to know what we took away."""
    entries: Sequence[KernelObject] = ()
    """Permanent neighbours or forwarding entries of one device, as they are now."""
    up: bool = False
    """Whether a link is up, as `ip link set up` makes it."""
    is_flip: bool = False
    """Whether a link's `up` is what has changed."""
    mtu: int = 0
    """The MTU of a link, in bytes; 0: not told."""


_SUBJECTS: Final = {
    uapi.RTM_NEWLINK: (ChangedObject.LINK, False),
    uapi.RTM_DELLINK: (ChangedObject.LINK, True),
    uapi.RTM_NEWADDR: (ChangedObject.ADDRESS, False),
    uapi.RTM_DELADDR: (ChangedObject.ADDRESS, True),
    uapi.RTM_NEWROUTE: (ChangedObject.ROUTE, False),
    uapi.RTM_DELROUTE: (ChangedObject.ROUTE, True),
    uapi.RTM_NEWNEIGH: (ChangedObject.NEIGHBOUR, False),
    uapi.RTM_DELNEIGH: (ChangedObject.NEIGHBOUR, True),
    uapi.RTM_NEWRULE: (ChangedObject.RULE, False),
    uapi.RTM_DELRULE: (ChangedObject.RULE, True),
    uapi.RTM_NEWNETCONF: (ChangedObject.NETCONF, False),
}


_LEAST: Final = {ChangedObject.ROUTE: 28, ChangedObject.NEIGHBOUR: 28, ChangedObject.ADDRESS: 24}
"""Bytes of the shortest message that tells of one."""


class EventSource(Protocol):
    """A socket beside rtnetlink's that tells of changes."""

    @property
    def opened(self) -> socket.socket | None: ...  # noqa: D102 - None: it never tells any
    def waiting(self) -> list[Change]: ...  # noqa: D102 - see Monitor


class Monitor(Closing):
    """A socket that hears of links, addresses, routes, neighbours and forwarding entries, from its making on.

    Make it before the first dump, so that nothing falls between the two. `beside` are told with it.
    """

    def __init__(self, *, queue_bytes: int = QUEUE_BYTES) -> None:
        self.beside: tuple[EventSource, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that waits for the socket."""
        self._socket = open_netlink(uapi.NETLINK_ROUTE)
        enlarge_queue(self._socket, queue_bytes)
        self._socket.bind((0, 0))
        for group in _GROUPS:
            self._socket.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, group)

    def close(self) -> None:
        """Closes the socket, which ends the notifications."""
        self._forget_reader()
        self._socket.close()

    def ignore(self, port: int) -> None:
        """Hears no more what the socket with this port id does, as far as it is told (see `Change.port`)."""
        ignore(self._socket, port)

    async def changes(self) -> AsyncIterator[list[Change]]:
        """What has changed, as it comes: everything that waits to be read, in order. Ends when cancelled.

        An overrun is one change of its own: look at everything.
        """
        readable, self._loop = asyncio.Event(), asyncio.get_running_loop()
        for each in self._sockets():
            self._loop.add_reader(each, readable.set)  # what is read is told at once, so that the order is right
        try:
            while True:
                await readable.wait()
                readable.clear()
                if told := self.waiting():
                    yield told
        finally:
            self._forget_reader()

    def waiting(self) -> list[Change]:
        """What is told already and not read yet, in order; only the first of it if it is much. Does not wait."""
        blocks, more = list[bytes](), list[Change]()
        try:
            while len(blocks) < _AT_ONCE:
                blocks.append(self._socket.recv(_RECEIVE_BYTES))
        except BlockingIOError:
            pass
        except OSError as error:
            more = [self._overrun(error)]
        return [*read(b"".join(blocks)), *more, *(change for each in self.beside for change in each.waiting())]

    def _sockets(self) -> list[socket.socket]:
        return [self._socket, *(each.opened for each in self.beside if each.opened is not None)]

    def _forget_reader(self) -> None:
        if self._loop is not None:
            for each in self._sockets():
                self._loop.remove_reader(each)
            self._loop = None

    def _overrun(self, error: OSError) -> Change:
        if error.errno != ENOBUFS:
            raise error
        drain(self._socket)  # it says less than what is missing, and keeps the queue full
        return Change(ChangedObject.OVERRUN)


def read(block: bytes) -> Iterator[Change]:
    """The changes that datagrams of the kernel report; skips what is of no concern."""
    offset, entries = 0, Reader(FDB_ENTRIES, 0)
    while offset + 16 <= len(block):
        length, kind, _, _, port = uapi.HEADER.unpack_from(block, offset)
        known = _SUBJECTS.get(kind)
        if length < 20 or offset + length > len(block):
            return
        if known is not None and length >= _LEAST.get(known[0], 0):
            subject, gone = known
            family = block[offset + 16]
            if subject is ChangedObject.ROUTE:
                yield _route(block, offset, length, gone, port)
            elif subject is ChangedObject.LINK:
                yield _link(block, offset, length, gone, port)
            elif subject is ChangedObject.RULE:
                yield Change(subject, gone, family, port=port)
            elif subject is ChangedObject.NETCONF:
                yield Change(subject, gone, family, _netconf_device(block, offset, length), 0, port)
            elif subject is ChangedObject.ADDRESS:
                (device,) = _IFINDEX.unpack_from(block, offset + 20)
                yield Change(subject, gone, family, device, 0, port)
            elif gone or family != uapi.AF_BRIDGE or not _is_permanent(block, offset):
                yield _neighbour(block, offset, length, gone, port)
            else:  # our own come by the hundred, see `ignore`
                (device,) = _IFINDEX.unpack_from(block, offset + 20)
                entries.found = []
                offset = entries.take_alike(block, offset, length)
                yield Change(ChangedObject.FDB_ENTRY, gone, family, device, 0, port, entries=entries.found)
                continue
        offset += (length + 3) & ~3


def _netconf_device(block: bytes, offset: int, length: int) -> int:
    for attribute, start, _ in spans(block, offset + 16 + _NETCONF_HEADER_BYTES, offset + length):
        if attribute == uapi.NETCONFA_IFINDEX:
            (device,) = _IFINDEX.unpack_from(block, start)
            return int(device)
    return 0


def _is_permanent(block: bytes, offset: int) -> bool:
    (state,) = _NEIGHBOUR_STATE.unpack_from(block, offset + 24)
    return bool(state & (uapi.NUD_PERMANENT | uapi.NUD_NOARP))


def _neighbour(block: bytes, offset: int, length: int, gone: bool, port: int) -> Change:
    """Also a forwarding entry that goes: to netlink that is a neighbour of the family AF_BRIDGE."""
    walked = spans(block, offset + 16 + _NEIGHBOUR_HEADER_BYTES, offset + length)
    key: Hashable = None
    if block[offset + 16] == uapi.AF_BRIDGE:
        fields = fields_of(FDB_ENTRIES, block, offset, walked)
        if "mac" in fields:
            key = FdbEntry(fields["mac"], b"", fields["ifindex"]).key
        return Change(ChangedObject.FDB_ENTRY, gone, uapi.AF_BRIDGE, fields["ifindex"], 0, port, key=key)
    fields = fields_of(NEIGHBOURS, block, offset, walked)
    family, device = fields["family"], fields["ifindex"]
    gone |= bool(fields["state"] & uapi.NUD_FAILED)  # as one that is deleted
    made = None if gone else NEIGHBOURS.build(fields)
    if made is not None:
        return Change(ChangedObject.NEIGHBOUR, gone, family, device, 0, port, entries=(made,))
    if "dst" in fields:
        key = Neighbour(fields["dst"], b"", family, device).key
    return Change(ChangedObject.NEIGHBOUR, gone, family, device, 0, port, key=key)


def _link(block: bytes, offset: int, length: int, gone: bool, port: int) -> Change:
    device, flags, changed = _LINK.unpack_from(block, offset + 20) if length >= _LINK_BYTES else (0, 0, 0)
    mtu = 0
    for attribute, start, _ in spans(block, offset + _LINK_BYTES, offset + length):
        if attribute == uapi.IFLA_MTU:
            (mtu,) = _IFINDEX.unpack_from(block, start)
    up, is_flip = bool(flags & uapi.IFF_UP), bool(changed & uapi.IFF_UP)
    return Change(ChangedObject.LINK, gone, block[offset + 16], device, 0, port, up=up, is_flip=is_flip, mtu=mtu)


def _route(block: bytes, offset: int, length: int, gone: bool, port: int) -> Change:
    family, bits, _, _, table, protocol, _, kind = block[offset + 16 : offset + 24]
    dst, device = b"", 0
    for attribute, start, end in spans(block, offset + 16 + _ROUTE_HEADER_BYTES, offset + length):
        if attribute == uapi.RTA_DST:
            dst = block[start:end]
        elif attribute == uapi.RTA_OIF:
            (device,) = _IFINDEX.unpack_from(block, start)
    is_main = table == RT_TABLE_MAIN
    return Change(ChangedObject.ROUTE, gone, family, device, protocol, port, dst, bits, is_main, kind in DROPS)
