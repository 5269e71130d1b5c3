"""Dumps of the kernel's tables as kernel objects: the requests, and what each kind of message means."""

import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.objects import FdbEntry, Neighbour, Route
from flannelette.services.dataplane.netlink.raw_socket import DumpReader
from flannelette.services.dataplane.netlink.uapi import spans

T = TypeVar("T", Route, Neighbour, FdbEntry)

Fields = Mapping[str, Any]
"""The named parts of a message: numbers of its header, attributes as numbers or bytes."""


@frozen
class MessageFormat(Generic[T]):
    """How one kind of object lies in a dumped message."""

    made: type[T]
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


def fields_of(
    form: MessageFormat[T], block: bytes, offset: int, spans: Iterable[tuple[int, int, int]]
) -> dict[str, Any]:
    """The named parts of the message at `offset`, whose attributes are `spans`; `rest` is the others, as they are."""
    fields: dict[str, Any] = dict(zip(form.header_names, form.header.unpack_from(block, offset + 16), strict=True))
    rest = []
    for attribute, first, last in spans:
        if attribute in form.numbers and last - first == 4:
            fields[form.numbers[attribute]] = int.from_bytes(block[first:last], sys.byteorder)
        elif attribute in form.blobs:
            fields[form.blobs[attribute]] = block[first:last]
        elif attribute not in form.ignored:
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

ROUTES: Final = MessageFormat(
    Route,
    uapi.RTM_NEWROUTE,
    struct.Struct("=8BI"),
    tuple("family length source_length tos table_byte protocol scope route_type flags".split()),
    {uapi.RTA_OIF: "ifindex", uapi.RTA_PRIORITY: "metric", uapi.RTA_TABLE: "table"},
    {uapi.RTA_DST: "dst", uapi.RTA_GATEWAY: "gateway"},
    frozenset((uapi.RTA_CACHEINFO, uapi.RTA_PREF)),
    _route,
)
NEIGHBOURS: Final = MessageFormat(
    Neighbour,
    uapi.RTM_NEWNEIGH,
    struct.Struct("=B3xiHBB"),
    tuple("family ifindex state flags type".split()),
    {},
    {uapi.NDA_DST: "dst", uapi.NDA_LLADDR: "mac"},
    _STATISTICS,
    _neighbour,
)
FDB_ENTRIES: Final = MessageFormat(
    FdbEntry,
    uapi.RTM_NEWNEIGH,
    struct.Struct("=B3xiHBB"),
    tuple("family ifindex state flags type".split()),
    {uapi.NDA_VNI: "vni", uapi.NDA_IFINDEX: "via", uapi.NDA_MASTER: "bridge"},
    {uapi.NDA_DST: "dst", uapi.NDA_LLADDR: "mac", uapi.NDA_PORT: "port_in_network_order"},
    _STATISTICS,
    _fdb_entry,
)


@frozen
class Request(Generic[T]):
    """A request for a dump, and the format of its answers."""

    form: MessageFormat[T]
    message: bytes
    """The request as netlink has it, without its number."""


def routes_request(family: int, table: int, protocol: int = 0, ifindex: int = 0) -> Request[Route]:
    """Asks for the routes of a table; protocol and device 0: any. The kernel filters (NETLINK_GET_STRICT_CHK)."""
    attributes = _u32(uapi.RTA_TABLE, table) + (_u32(uapi.RTA_OIF, ifindex) if ifindex else b"")
    body = ROUTES.header.pack(family, 0, 0, 0, 0, protocol, 0, 0, 0) + attributes
    return Request(ROUTES, uapi.request(uapi.RTM_GETROUTE, body, uapi.NLM_F_DUMP))


def neighbours_request(family: int, ifindex: int) -> Request[Neighbour]:
    """Asks for the neighbours of a device; the kernel filters by device, not by state."""
    body = NEIGHBOURS.header.pack(family, 0, 0, 0, 0) + _u32(uapi.NDA_IFINDEX, ifindex)
    return Request(NEIGHBOURS, uapi.request(uapi.RTM_GETNEIGH, body, uapi.NLM_F_DUMP))


def fdb_request(ifindex: int) -> Request[FdbEntry]:
    """Asks for the forwarding entries of a device."""
    body = FDB_ENTRIES.header.pack(uapi.AF_BRIDGE, ifindex, 0, 0, 0)
    return Request(FDB_ENTRIES, uapi.request(uapi.RTM_GETNEIGH, body, uapi.NLM_F_DUMP))


def _u32(kind: int, value: int) -> bytes:
    return uapi.attribute(kind, struct.pack("=I", value))


class Reader(DumpReader, Generic[T]):
    """Collects the objects of a dump."""

    def __init__(self, form: MessageFormat[T], sequence: int) -> None:
        super().__init__(sequence)
        self.found: list[T] = []
        self._form: MessageFormat[T] = form
        self._header_size = 16 + form.header.size
        self._layouts: dict[bytes, _Layout] = {}

    def read(self, kind: int, block: bytes, offset: int, end: int) -> int | None:
        """See DumpReader."""
        if kind != self._form.message_type:
            return None
        if end - offset < self._header_size:
            self.inconsistent = True
            return None
        return self.take_alike(block, offset, end - offset)

    def take_alike(self, block: bytes, offset: int, length: int) -> int:
        """Reads the message there, and those behind it that look alike; returns where the next one is."""
        layout = self._layouts.get(block[offset : offset + self._header_size])
        if layout is not None and (count := layout.read(block, offset, self.found)):
            return offset + count * layout.size
        self._learn(block, offset, length)
        return offset + ((length + 3) & ~3)

    def _learn(self, block: bytes, offset: int, length: int) -> None:
        """Reads one message the general way."""
        form = self._form
        start = offset + self._header_size
        walked = list(spans(block, start, offset + length))
        fields = fields_of(form, block, offset, walked)
        built = form.build(fields)
        if built is None:
            return
        self.found.append(built)
        if not fields["rest"] and walked and (walked[-1][2] + 3) & ~3 == offset + length:
            self._layouts[block[offset:start]] = _Layout(form, block, offset, walked, built)


class _Layout:
    """Where everything lies in a message like the one that it was learned from."""

    def __init__(
        self,
        form: MessageFormat[Any],
        block: bytes,
        offset: int,
        walked: Sequence[tuple[int, int, int]],
        built: tuple[Any, ...],
    ) -> None:
        layout, names = "=", [""]
        fixed = 16 + form.header.size
        for attribute, first, last in walked:
            fixed += 4  # length and type of the attribute
            size, padding = last - first, -(last - first) % 4
            name = form.numbers.get(attribute) or form.blobs.get(attribute, "")
            if name in form.made._fields:
                layout += f"{fixed}s" + ("I" if attribute in form.numbers else f"{size}s")
                names += [name, ""]
                fixed = padding
            elif attribute in form.ignored:
                layout += f"{fixed}s{size + padding}x"
                names.append("")
                fixed = 0
            else:
                fixed += size + padding
        self._struct = struct.Struct(f"{layout}{fixed}s")
        values = [names.index(field) if field in names else None for field in form.made._fields]
        # A field that is no attribute here has the value that it had there.
        self._constants = tuple(value for value, place in zip(built, values, strict=True) if place is None)
        places = iter(range(len(names), len(names) + len(self._constants)))
        self._pick = itemgetter(*(next(places) if place is None else place for place in values))
        self._fixed = itemgetter(*(index for index, name in enumerate(names) if not name))
        self._expected = self._fixed(self._struct.unpack_from(block, offset))
        self.size = self._struct.size
        self._made = form.made

    def read(self, block: bytes, offset: int, found: list[Any]) -> int:
        """Adds the objects of as many messages as look alike; returns how many."""
        fixed, expected, pick, constants = self._fixed, self._expected, self._pick, self._constants
        made, new, size = self._made, tuple.__new__, self.size
        end = offset + (len(block) - offset) // size * size
        before = len(found)
        for fields in self._struct.iter_unpack(memoryview(block)[offset:end]):
            if fixed(fields) != expected:
                break
            found.append(new(made, pick(fields + constants)))
        return len(found) - before
