"""FOU ports over generic netlink (linux/fou.h): which there are, and whether there can be any; the actuator of those
that our tunnel devices send from; and a watch, as the kernel reports no change of one.
"""

import asyncio
import errno
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import field
from errno import EADDRINUSE, EPERM
from functools import partial
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.object_text import refusal
from flannelette.services.dataplane.netlink.objects import ENCAP_FOU, FOU_PORT, FouPort, KernelObject, Plan, steps
from flannelette.services.dataplane.netlink.raw_socket import (
    GENL,
    LOST,
    AnswersLost,
    Closing,
    DumpReader,
    RawTransport,
    complete,
    find_family,
)
from flannelette.services.dataplane.netlink.uapi import HEADER, KernelError, attributes
from flannelette.services.runtime.os.processes import udp_port_is_taken

NO_MODULE: Final = "the kernel module fou is not loaded (`modprobe fou`; it is never loaded on demand)"
NO_RIGHT: Final = "the kernel gives FOU ports to the initial user namespace only"
_ADD, _DEL, _GET = 1, 2, 3
_PORT, _AF, _IPPROTO, _TYPE, _LOCAL_V4, _PEER_V4, _PEER_PORT, _IFINDEX = 1, 2, 3, 4, 6, 8, 10, 11
_DIRECT: Final = 1
"""FOU_ENCAP_DIRECT: an IP packet follows the UDP header at once."""
_IPIP: Final = 4
_ABSENT: Final = FouPort(bytes((192, 0, 2, 1)), 9, 0)
"""TEST-NET-1, which no host has."""


@frozen
class FouRow:
    """A FOU port as a dump tells it."""

    port: int
    protocol: int
    """0: GUE, whose own header says it."""
    local: bytes
    """Address that the port is bound to, packed; empty: any."""
    rest: Mapping[int, bytes] = field(default_factory=dict, hash=False)
    """Attributes that none of ours has."""

    def is_like(self, item: FouPort) -> bool:
        """Whether it does what this port has to."""
        return (self.local, self.port, self.protocol, self.rest) == (item.local, item.port, _IPIP, {})

    def __str__(self) -> str:
        what = f"ipproto {self.protocol}" if self.protocol else "gue"
        local = f" local {ip_address(self.local)}" if self.local else ""
        return f"port {self.port} {what}{local}"


class FouPorts(Closing):
    """One socket of generic netlink, for one event loop. Raises Unavailable when an answer of the kernel is lost."""

    def __init__(self) -> None:
        self._transport = RawTransport(protocol=uapi.NETLINK_GENERIC)
        self._family = 0

    def close(self) -> None:
        """See Closing."""
        self._transport.close()

    async def obstacle(self) -> str:
        """Why this process can have no FOU port here; empty: it can. Changes nothing."""
        if not await self.exist():
            return NO_MODULE
        refused = await self.delete(_ABSENT)
        return NO_RIGHT if refused is not None and refused.error == EPERM else ""

    async def exist(self) -> bool:
        """Whether the kernel has FOU, and its module is loaded."""
        if not self._family:
            self._family = await find_family(self._transport, "fou")
        return self._family > 0

    async def rows(self) -> list[FouRow]:
        """Returns all FOU ports of IPv4."""
        if not await self.exist():
            return []
        request = uapi.request(self._family, GENL.pack(_GET, 1, 0), uapi.NLM_F_DUMP)
        return (await complete(self._transport, request, partial(PortReader, self._family), "FOU ports")).rows

    async def add(self, item: FouPort) -> KernelError | None:
        """The kernel's refusal; None: it is there."""
        return await self._send(_ADD, item)

    async def remove(self, item: FouPort) -> None:
        """Closes the port if it is there. Another program's in its place stays: the kernel compares no protocols."""
        if any(row.is_like(item) for row in await self.rows()):
            await self.delete(item)

    async def delete(self, item: FouPort) -> KernelError | None:
        """The kernel's refusal, also of one that is not there."""
        return await self._send(_DEL, item)

    async def _send(self, order: int, item: FouPort) -> KernelError | None:
        if not await self.exist():
            return None
        number = self._transport.reserve(1)
        message = uapi.numbered(encode(self._family, order, item), number)
        try:
            return (await self._transport.exchange(message, number, number)).get(number)
        except AnswersLost:
            raise Unavailable(LOST) from None


async def delete_port(local: str, port: int) -> None:
    """Closes a FOU port; one that is not there is no error. Raises Unavailable."""
    with FouPorts() as ports:
        await ports.remove(FouPort(ip_address(local).packed, port, 0))


def encode(family: int, order: int, item: FouPort) -> bytes:
    """A message about a port, without its number."""
    parts = (
        (_PORT, item.port.to_bytes(2)),
        (_AF, bytes([socket.AF_INET])),
        (_IPPROTO, bytes([_IPIP])),
        (_TYPE, bytes([_DIRECT])),
        (_LOCAL_V4, item.local),
    )
    body = b"".join(uapi.attribute(kind, value) for kind, value in parts)
    return uapi.request(family, GENL.pack(order, 1, 0) + body, uapi.NLM_F_ACK)


class PortReader(DumpReader):
    """Collects the ports of a dump."""

    def __init__(self, family: int, sequence: int) -> None:
        super().__init__(sequence)
        self.rows: list[FouRow] = []
        self._family = family

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        """See DumpReader."""
        if kind == self._family:
            self.rows.extend(_rows(block[offset + HEADER.size + GENL.size : end]))


def _rows(body: bytes) -> Iterator[FouRow]:
    found = dict(attributes(body))
    if found.get(_AF) != bytes([socket.AF_INET]):
        return
    protocol = int.from_bytes(found.get(_IPPROTO, b"")[:1]) if found.get(_TYPE) == bytes([_DIRECT]) else 0
    local = found.get(_LOCAL_V4, b"")
    rest = {kind: value for kind, value in found.items() if kind in (_PEER_V4, _PEER_PORT, _IFINDEX) and any(value)}
    yield FouRow(
        int.from_bytes(found.get(_PORT, b"")), protocol, local if any(local) and len(local) == 4 else b"", rest
    )


_IFLA_LINKINFO, _INFO_KIND, _INFO_DATA = 18, 1, 2
_IPTUN_LOCAL, _IPTUN_ENCAP_TYPE, _IPTUN_ENCAP_DPORT = 2, 15, 18


class FouActuator(Closing):
    """One socket of generic netlink and one of rtnetlink, for one event loop; as `KernelSocket`, for FOU ports."""

    kinds: Final = frozenset((FOU_PORT,))

    def __init__(self) -> None:
        self._ports = FouPorts()
        self._links = RawTransport()

    def close(self) -> None:
        """See Closing."""
        self._ports.close()
        self._links.close()

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """The ports of those of these devices that send from one. Raises Unavailable."""
        wanted = [port for ifindex in devices if (port := await self._port_of(ifindex)) is not None]
        rows = await self._ports.rows() if wanted else []
        return Contents(frozenset(), frozenset(port for port in wanted if any(row.is_like(port) for row in rows)))

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan; returns what failed, with the reason. To delete what is not there is no failure."""
        failures: dict[KernelObject, str] = {}
        for verb, items in steps(plan):
            for item in items:
                if isinstance(item, FouPort):
                    try:
                        why = await self._put(item) if verb == "replace" else await self._remove(item)
                    except Unavailable as error:
                        why = str(error)
                    failures |= {item: why} if why else {}
        return failures

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """Does nothing: a plan of FOU ports leaves no work for later."""

    async def _remove(self, item: FouPort) -> str:
        await self._ports.remove(item)
        return ""

    async def _put(self, item: FouPort) -> str:
        """Why it is not there; empty: it is."""
        if not await self._ports.exist():
            return NO_MODULE
        refused = await self._ports.add(item)
        if refused is None:
            return ""
        if refused.error != EADDRINUSE:
            return NO_RIGHT if refused.error == EPERM else refusal(refused.error, refused.detail)
        there = [row for row in await self._ports.rows() if row.port == item.port and row.local in (b"", item.local)]
        if any(row.is_like(item) for row in there):
            return ""
        if there:
            return f"another FOU port is there, `{there[0]}`: delete it with `ip fou del {there[0]}`"
        return await udp_port_is_taken(item.port)

    async def _port_of(self, ifindex: int) -> FouPort | None:
        """The port that a tunnel device sends from; None: it is no such device."""
        number = self._links.reserve(1)
        body = struct.pack("=BxHiII", 0, 0, ifindex, 0, 0)
        message = uapi.numbered(uapi.request(uapi.RTM_GETLINK, body), number)
        try:
            answer = (await self._links.ask(message, number, number))[number]
        except AnswersLost:
            raise Unavailable("the kernel's answer about a link was lost: try again") from None
        return None if isinstance(answer, KernelError) else port_in_link(answer, ifindex)


def port_in_link(message: bytes, ifindex: int) -> FouPort | None:
    """Reads the FOU port from a tunnel device's message (RTM_NEWLINK); None: another kind of link, or one without
    FOU.
    """
    info = dict(attributes(dict(attributes(message[32:])).get(_IFLA_LINKINFO, b"")))
    data = dict(attributes(info.get(_INFO_DATA, b""))) if info.get(_INFO_KIND) == b"ipip\0" else {}
    if int.from_bytes(data.get(_IPTUN_ENCAP_TYPE, b""), sys.byteorder) != ENCAP_FOU or _IPTUN_LOCAL not in data:
        return None
    return FouPort(data[_IPTUN_LOCAL], int.from_bytes(data.get(_IPTUN_ENCAP_DPORT, b"")), ifindex)


_LOOK_SECONDS: Final = 0.5
_MOST_SECONDS: Final = 30.0
_TAKEN_SECONDS: Final = 0.02


async def watch_port(address: str, port: int, audit: Callable[[], None]) -> None:
    """Watches the port until cancelled; has everything compared when the port is missing and can be made.

    While another program has the UDP port, that is as soon as it is free.
    """
    wanted, pause = FouPort(ip_address(address).packed, port, 0), _LOOK_SECONDS
    with FouPorts() as kernel:
        while True:
            with suppress(Unavailable):
                if any(row.is_like(wanted) for row in await kernel.rows()):
                    pause = _LOOK_SECONDS
                else:
                    while not _is_free(address, port):  # noqa: ASYNC110 - nothing tells it
                        await asyncio.sleep(_TAKEN_SECONDS)
                    audit()
                    pause = min(2 * pause, _MOST_SECONDS)  # while something else is in the way
            await asyncio.sleep(pause)


def _is_free(address: str, port: int) -> bool:
    """Whether a socket can have the port. A missing local address does not count against it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRNOTAVAIL
    return True
