"""Messages of a dump, as the kernel writes them."""

import struct

from flannelette.services.dataplane.netlink import dumps as dump
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.objects import FdbEntry, Neighbour, Route

SEQUENCE, PORT = 7, 4711
MULTI = 0x02


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def message(kind: int, body: bytes, flags: int = MULTI, sequence: int = SEQUENCE) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, PORT) + body


DONE = message(uapi.NLMSG_DONE, bytes(4))


def route_message(route: Route, flags: int = MULTI) -> bytes:
    """As fib_dump_info and rt6_fill_node write it."""
    header = dump.ROUTES.header.pack(
        route.family,
        route.length,
        0,
        route.tos,
        min(route.table, 252),
        route.protocol,
        route.scope,
        route.route_type,
        uapi.RTNH_F_ONLINK if route.onlink else 0,
    )
    body = header + number(uapi.RTA_TABLE, route.table)
    body += attribute(uapi.RTA_DST, route.dst) if route.length else b""
    body += number(uapi.RTA_PRIORITY, route.metric) if route.metric else b""
    body += route.rest
    body += attribute(uapi.RTA_GATEWAY, route.gateway) if route.gateway else b""
    body += number(uapi.RTA_OIF, route.ifindex) if route.ifindex else b""
    if route.family == uapi.AF_INET6:
        body += attribute(uapi.RTA_CACHEINFO, route.dst * 2) + attribute(uapi.RTA_PREF, b"\0")
    return message(uapi.RTM_NEWROUTE, body, flags)


def neighbour_message(neighbour: Neighbour, state: int, used: int = 0) -> bytes:
    header = dump.NEIGHBOURS.header.pack(neighbour.family, neighbour.ifindex, state, 0, 1)
    body = attribute(uapi.NDA_DST, neighbour.dst) + attribute(uapi.NDA_LLADDR, neighbour.mac)
    return message(
        uapi.RTM_NEWNEIGH, header + body + number(4, used) + attribute(3, struct.pack("=4I", used, 1, 2, 0))
    )


def fdb_message(entry: FdbEntry, state: int = 0x80) -> bytes:
    header = dump.FDB_ENTRIES.header.pack(uapi.AF_BRIDGE, entry.ifindex, state, 2, 0)
    body = attribute(uapi.NDA_LLADDR, entry.mac) + attribute(uapi.NDA_DST, entry.dst)
    body += attribute(uapi.NDA_PORT, entry.port.to_bytes(2)) if entry.port else b""
    body += number(uapi.NDA_VNI, entry.vni) if entry.vni else b""
    body += number(uapi.NDA_IFINDEX, entry.via) if entry.via else b""
    return message(uapi.RTM_NEWNEIGH, header + body + attribute(3, bytes(16)))
