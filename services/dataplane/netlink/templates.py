"""Netlink messages of kernel objects, as templates.

pyroute2 encodes one message of each shape, with placeholders; the real values are then put between the pieces,
for all objects of a shape in one call. That is 0.3 µs a message instead of 70, and the bytes are still pyroute2's
(a test compares them).
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.objects import (
    FdbEntry,
    KernelObject,
    Neighbour,
    Route,
    Verb,
)
from flannelette.services.dataplane.netlink.pyroute2_parts import ndmsg, rtmsg
from flannelette.services.dataplane.netlink.uapi import attributes

_FLAGS: Final[dict[Verb, int]] = {
    "replace": uapi.NLM_F_REQUEST | uapi.NLM_F_CREATE | uapi.NLM_F_REPLACE,
    "del": uapi.NLM_F_REQUEST,
}
_SEQUENCE: Final = 0xA1A2A3A4
_METRIC: Final = 0xB1B2B3B4
_DST: Final = bytes(range(0xC1, 0xD1))
_GATEWAY: Final = bytes(range(0xD1, 0xE1))
_MAC: Final = bytes(range(0xE2, 0xE8))


@dataclass(frozen=True, slots=True)
class Template:
    """A message with holes, for the sequence number and some fields of an object."""

    size: int
    """Bytes of one message."""
    fill: Callable[[Sequence[KernelObject], int], bytes]
    """One message for each object, numbered from the second argument, as one."""


def route(verb: Verb, gateway_length: int, how: tuple[Any, ...]) -> Template:
    """Makes the template of routes that agree in everything but destination, gateway and metric."""
    shape = Route(b"", b"", 0, *how)
    dst = _DST[: 4 if shape.family == uapi.AF_INET else 16]
    # Of a nexthop object's gateway and device the kernel tells us, but it does not want to hear of them.
    by_id = uapi.RTA_NH_ID in dict(attributes(shape.rest))
    gateway = b"" if by_id else _GATEWAY[:gateway_length]
    message = rtmsg()
    message["family"] = shape.family
    message["dst_len"] = shape.length
    message["tos"] = shape.tos
    message["table"] = shape.table if shape.table < 256 else uapi.RT_TABLE_COMPAT
    message["proto"] = shape.protocol
    message["scope"] = shape.scope
    message["type"] = shape.route_type
    message["flags"] = uapi.RTNH_F_ONLINK if shape.onlink else 0
    message["attrs"] = _present(
        ("RTA_DST", _text(dst)),
        ("RTA_GATEWAY", gateway and _text(gateway)),
        ("RTA_OIF", 0 if by_id else shape.ifindex),
        ("RTA_PRIORITY", _METRIC),
        ("RTA_TABLE", shape.table if shape.table >= 256 else 0),
    )
    data = _encoded(message, verb, uapi.RTM_NEWROUTE, uapi.RTM_DELROUTE)
    if shape.rest:
        data = struct.pack("=I", len(data) + len(shape.rest)) + data[4:] + shape.rest
    return _cut(data, {"dst": dst, "gateway": gateway, "metric": _METRIC}, Route)


def neighbour(verb: Verb, mac_length: int, how: tuple[Any, ...]) -> Template:
    """Makes the template of neighbours of one device."""
    family, ifindex = how
    dst = _DST[: 4 if family == uapi.AF_INET else 16]
    message = ndmsg()
    message["family"] = family
    message["ifindex"] = ifindex
    message["state"] = uapi.NUD_PERMANENT
    message["attrs"] = _present(("NDA_DST", _text(dst)), ("NDA_LLADDR", _MAC[:mac_length].hex(":")))
    data = _encoded(message, verb, uapi.RTM_NEWNEIGH, uapi.RTM_DELNEIGH)
    return _cut(data, {"dst": dst, "mac": _MAC[:mac_length]}, Neighbour)


def fdb_entry(verb: Verb, dst_length: int, how: tuple[Any, ...]) -> Template:
    """Makes the template of forwarding entries of one device that agree in everything but MAC and destination."""
    shape = FdbEntry(b"", b"", *how)
    dst = _DST[:dst_length]
    message = ndmsg()
    message["family"] = uapi.AF_BRIDGE
    message["ifindex"] = shape.ifindex
    message["state"] = uapi.NUD_PERMANENT
    message["flags"] = uapi.NTF_SELF
    message["attrs"] = _present(
        ("NDA_LLADDR", _MAC.hex(":")),
        ("NDA_DST", dst and _text(dst)),
        ("NDA_PORT", shape.port),
        ("NDA_VNI", shape.vni),
        ("NDA_IFINDEX", shape.via),
    )
    data = _encoded(message, verb, uapi.RTM_NEWNEIGH, uapi.RTM_DELNEIGH)
    return _cut(data, {"mac": _MAC, "dst": dst}, FdbEntry)


def _text(packed: bytes) -> str:
    return str(ip_address(packed))


def _present(*wanted: tuple[str, str | bytes | int]) -> list[tuple[str, str | bytes | int]]:
    return [attribute for attribute in wanted if attribute[1]]


def _encoded(message: Any, verb: Verb, put: int, delete: int) -> bytes:
    message["header"]["type"] = put if verb == "replace" else delete
    message["header"]["flags"] = _FLAGS[verb]
    message["header"]["sequence_number"] = _SEQUENCE
    message.encode()
    return bytes(message.data)


def _cut(data: bytes, placeholders: Mapping[str, int | bytes], made: type[KernelObject]) -> Template:
    """Cuts a message at its placeholders, which come in this order, behind that of the sequence number."""
    size, layout, pieces = len(data), "=", []
    for placeholder in (_SEQUENCE, *placeholders.values()):
        hole = struct.pack("=I", placeholder) if isinstance(placeholder, int) else placeholder
        piece, _, data = data.partition(hole) if hole else (b"", b"", data)
        pieces.append(piece)
        layout += f"{len(piece)}s" + ("I" if isinstance(placeholder, int) else f"{len(hole)}s")
    pack = struct.Struct(f"{layout}{len(data)}s").pack
    fields = [made._fields.index(name) for name in placeholders]
    # One expression for each number of holes: a loop over them would take three times as long.
    if len(fields) == 2:
        (a, b, c), (i, j) = pieces, fields
        return Template(
            size, lambda some, n: b"".join([pack(a, n, b, o[i], c, o[j], data) for n, o in enumerate(some, n)])
        )
    (a, b, c, d), (i, j, k) = pieces, fields
    return Template(
        size, lambda some, n: b"".join([pack(a, n, b, o[i], c, o[j], d, o[k], data) for n, o in enumerate(some, n)])
    )
