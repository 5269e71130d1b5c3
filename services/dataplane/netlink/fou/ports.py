"""FOU ports over generic netlink (linux/fou.h): which there are, one more, one less, and whether there can be any."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from errno import EPERM
from functools import partial
from ipaddress import ip_address
from typing import Final, Self

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dump_reader import DumpReader, complete
from flannelette.services.dataplane.netlink.fou.values import FouPort
from flannelette.services.dataplane.netlink.generic.family import GENL, find_family
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost, RawTransport
from flannelette.services.dataplane.netlink.uapi import HEADER, KernelError, attributes

NO_MODULE: Final = "the kernel module fou is not loaded (`modprobe fou`; it is never loaded on demand)"
NO_RIGHT: Final = "the kernel gives FOU ports to the initial user namespace only"
_ADD, _DEL, _GET = 1, 2, 3
_PORT, _AF, _IPPROTO, _TYPE, _LOCAL_V4, _PEER_V4, _PEER_PORT, _IFINDEX = 1, 2, 3, 4, 6, 8, 10, 11
_DIRECT: Final = 1
"""FOU_ENCAP_DIRECT: an IP packet follows the UDP header at once."""
_IPIP: Final = 4
_ABSENT: Final = FouPort(bytes((192, 0, 2, 1)), 9, 0)
"""TEST-NET-1, which no host has."""
_LOST: Final = "the kernel's answer was lost, so whether it is done is not known: the next resync will tell"


@dataclass(frozen=True, slots=True)
class FouRow:
    """A FOU port as a dump tells it."""

    port: int
    protocol: int
    """0: GUE, whose own header says it."""
    local: bytes
    """Empty: any address."""
    rest: Mapping[int, bytes] = field(default_factory=dict, hash=False)
    """Attributes that none of ours has."""

    def is_like(self, item: FouPort) -> bool:
        """Whether it does what this port has to."""
        return (self.local, self.port, self.protocol, self.rest) == (item.local, item.port, _IPIP, {})

    def __str__(self) -> str:
        what = f"ipproto {self.protocol}" if self.protocol else "gue"
        local = f" local {ip_address(self.local)}" if self.local else ""
        return f"port {self.port} {what}{local}"


class FouPorts:
    """One socket of generic netlink, for one event loop. Raises Unavailable when an answer of the kernel is lost."""

    def __init__(self) -> None:
        self._transport = RawTransport(protocol=uapi.NETLINK_GENERIC)
        self._family = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
            raise Unavailable(_LOST) from None


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
    body = b"".join(_padded(uapi.attribute(kind, value)) for kind, value in parts)
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


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
