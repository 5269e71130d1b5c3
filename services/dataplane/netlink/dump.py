"""Dumps of the kernel's tables as kernel objects: the requests, and what each kind of message means."""

import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from services.dataplane.netlink import uapi
from services.dataplane.netlink.objects import FdbEntry, Neighbour, Route

T = TypeVar("T", Route, Neighbour, FdbEntry)

Fields = Mapping[str, Any]
"""The named parts of a message: numbers of its header, attributes as numbers or bytes."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How one kind of object lies in a dumped message."""

    made: type[T]
    plural: str
    message_type: int
    header: struct.Struct
    header_names: tuple[str, ...]
    numbers: Mapping[int, str]
    """Attributes that are one u32 in host order."""
    blobs: Mapping[int, str]
    """Attributes that are bytes. A name that is also a field of the object means that field."""
    ignored: frozenset[int]
    """Attributes that do not matter to us and may differ from message to message."""
    build: Callable[[Fields], T | None]
    """The object; None: it does not count."""


def fields_of(kind: Kind[T], block: bytes, offset: int, spans: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """The named parts of the message at `offset`, whose attributes are `spans`; `rest` is the others, as they are."""
    fields: dict[str, Any] = dict(zip(kind.header_names, kind.header.unpack_from(block, offset + 16), strict=True))
    rest = []
    for attribute, first, last in spans:
        if attribute in kind.numbers and last - first == 4:
            fields[kind.numbers[attribute]] = int.from_bytes(block[first:last], sys.byteorder)
        elif attribute in kind.blobs:
            fields[kind.blobs[attribute]] = block[first:last]
        elif attribute not in kind.ignored:
            rest.append(block[first - 4 : last].ljust((last - first + 7) & ~3, b"\0"))
    fields["rest"] = b"".join(rest)
    return fields


def _route(fields: Fields) -> Route | None:
    family, gateway = fields["family"], fields.get("gateway", b"")
    if fields["source_length"]:
        return None  # only for packets from certain sources (IPv6 subtrees): beside what we program
    return Route(
        dst=fields.get("dst", bytes(4 if family == uapi.AF_INET else 16)),
        gateway=gateway,
        metric=fields.get("metric", 0),
        family=family,
        length=fields["length"],
        ifindex=fields.get("ifindex", 0),
        protocol=fields["protocol"],
        scope=fields["scope"],
        route_type=fields["route_type"],
        onlink=bool(fields["flags"] & uapi.RTNH_F_ONLINK),
        table=fields.get("table", fields["table_byte"]),
        tos=fields["tos"],
        rest=fields["rest"],
    )


def _neighbour(fields: Fields) -> Neighbour | None:
    if not fields["state"] & uapi.NUD_PERMANENT or "dst" not in fields:
        return None
    return Neighbour(fields["dst"], fields.get("mac", b""), fields["family"], fields["ifindex"])


def _fdb_entry(fields: Fields) -> FdbEntry | None:
    if not fields["state"] & (uapi.NUD_PERMANENT | uapi.NUD_NOARP) or "mac" not in fields:
        return None
    if "bridge" in fields:
        return None  # of a bridge that the device is a port of
    return FdbEntry(
        fields["mac"],
        fields.get("dst", b""),
        fields["ifindex"],
        port=int.from_bytes(fields.get("port_in_network_order", b"")),
        vni=fields.get("vni", 0),
        via=fields.get("via", 0),
    )


_STATISTICS: Final = frozenset((uapi.NDA_CACHEINFO, uapi.NDA_PROBES, uapi.NDA_PROTOCOL, uapi.NDA_FLAGS_EXT))

ROUTES: Final = Kind(
    Route,
    "routes",
    uapi.RTM_NEWROUTE,
    struct.Struct("=8BI"),
    tuple("family length source_length tos table_byte protocol scope route_type flags".split()),
    {uapi.RTA_OIF: "ifindex", uapi.RTA_PRIORITY: "metric", uapi.RTA_TABLE: "table"},
    {uapi.RTA_DST: "dst", uapi.RTA_GATEWAY: "gateway"},
    frozenset((uapi.RTA_CACHEINFO, uapi.RTA_PREF)),
    _route,
)
NEIGHBOURS: Final = Kind(
    Neighbour,
    "neighbours",
    uapi.RTM_NEWNEIGH,
    struct.Struct("=B3xiHBB"),
    tuple("family ifindex state flags type".split()),
    {},
    {uapi.NDA_DST: "dst", uapi.NDA_LLADDR: "mac"},
    _STATISTICS,
    _neighbour,
)
FDB_ENTRIES: Final = Kind(
    FdbEntry,
    "forwarding entries",
    uapi.RTM_NEWNEIGH,
    struct.Struct("=B3xiHBB"),
    tuple("family ifindex state flags type".split()),
    {uapi.NDA_VNI: "vni", uapi.NDA_IFINDEX: "via", uapi.NDA_MASTER: "bridge"},
    {uapi.NDA_DST: "dst", uapi.NDA_LLADDR: "mac", uapi.NDA_PORT: "port_in_network_order"},
    _STATISTICS,
    _fdb_entry,
)


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """For a dump."""

    kind: Kind[T]
    message: bytes
    """Without its number."""

    def numbered(self, sequence: int) -> bytes:
        """The message."""
        return self.message[:8] + struct.pack("=I", sequence) + self.message[12:]


def routes_request(family: int, table: int, protocol: int = 0, ifindex: int = 0) -> Request[Route]:
    """For the routes of a table; protocol and device 0: any. The kernel filters (NETLINK_GET_STRICT_CHK)."""
    attributes = _number(uapi.RTA_TABLE, table) + (_number(uapi.RTA_OIF, ifindex) if ifindex else b"")
    body = ROUTES.header.pack(family, 0, 0, 0, 0, protocol, 0, 0, 0) + attributes
    return Request(ROUTES, _message(uapi.RTM_GETROUTE, body))


def neighbours_request(family: int, ifindex: int) -> Request[Neighbour]:
    """For the neighbours of a device; the kernel filters by device, not by state."""
    body = NEIGHBOURS.header.pack(family, 0, 0, 0, 0) + _number(uapi.NDA_IFINDEX, ifindex)
    return Request(NEIGHBOURS, _message(uapi.RTM_GETNEIGH, body))


def fdb_request(ifindex: int) -> Request[FdbEntry]:
    """For the forwarding entries of a device."""
    body = FDB_ENTRIES.header.pack(uapi.AF_BRIDGE, ifindex, 0, 0, 0)
    return Request(FDB_ENTRIES, _message(uapi.RTM_GETNEIGH, body))


def _number(kind: int, value: int) -> bytes:
    return struct.pack("=HHI", 8, kind, value)


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, uapi.NLM_F_REQUEST | uapi.NLM_F_DUMP, 0, 0) + body
