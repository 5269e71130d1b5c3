"""The table of kernel object kinds: one row says everything that the dataplane knows of a kind.

A new kind is a class in `objects`, a member of `KernelObject` and a row here. mypy refuses a member without a row
(`kind_of`), a row without a column, and a column of another kind's type.

Messages of kinds that rtnetlink carries are made by templates. pyroute2 encodes one message of each shape, with
placeholders; the real values are then put between the pieces, for all objects of a shape in one call. That is 0.3 µs
a message instead of 70, and the bytes are still pyroute2's (a test compares them).
"""

import shlex
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from errno import EINVAL, ENODEV, ENOENT, ESRCH
from ipaddress import ip_address
from typing import Any, Final, Generic, NamedTuple, TypeVar, assert_never

from flannelette.services.core.formats.shell_words import expand_words, split_words
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink import dumps, uapi
from flannelette.services.dataplane.netlink import object_text as texts
from flannelette.services.dataplane.netlink.dumps import MessageFormat, Request
from flannelette.services.dataplane.netlink.object_text import DeviceNames
from flannelette.services.dataplane.netlink.objects import (
    RT_TABLE_MAIN,
    FdbEntry,
    FouPort,
    Hook,
    IkeConnection,
    IkeKey,
    KernelObject,
    Neighbour,
    Route,
    Verb,
    WireguardDevice,
    WireguardPeer,
    XfrmPolicy,
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


@frozen
class Template:
    """A message with holes, for the sequence number and some fields of an object."""

    size: int
    """Bytes of one message."""
    fill: Callable[[Sequence[KernelObject], int], bytes]
    """One message for each object, numbered from the second argument, as one."""


def route_template(verb: Verb, gateway_length: int, how: tuple[Any, ...]) -> Template:
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


def neighbour_template(verb: Verb, mac_length: int, how: tuple[Any, ...]) -> Template:
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


def fdb_template(verb: Verb, dst_length: int, how: tuple[Any, ...]) -> Template:
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


T = TypeVar("T", bound=KernelObject)


@dataclass(frozen=True, slots=True, eq=False)
class ObjectKind(Generic[T]):
    """One kind of kernel object. The class has its key, and its number, which is its place in the order of work."""

    made: type[T]
    label: str
    """What `ip`, `bridge` and status texts call it."""
    singular: str
    plural: str
    text: Callable[[T, DeviceNames], str]
    """Writes an object as iproute2 prints it, or the tool of the field."""
    command: Callable[[Verb, T, DeviceNames], str]
    """The command that puts or deletes it, iproute2's where that can."""


@dataclass(frozen=True, slots=True, eq=False)
class RtnetlinkKind(ObjectKind[T]):
    """A kind that rtnetlink carries."""

    template: Callable[[Verb, int, tuple[Any, ...]], Template]
    """The message that puts or deletes objects of one shape: verb, length of field 2, and the constant fields."""
    first_constant: int
    """Index of the field from which on all objects of one template are the same."""
    dump: MessageFormat[Any]
    """How an object lies in a message of the kernel."""
    requests: Callable[[Collection[int], Collection[int]], Sequence[Request[Any]]]
    """The dumps that show all objects: of these families (AF numbers), on these devices (ifindex)."""
    gone: frozenset[int]
    """errnos of a deletion that mean that the object, or its device, is gone already."""
    nowhere: frozenset[int]
    """errnos of a dump that mean that there is no such table or device, so no objects."""


class Kinds(NamedTuple):
    """A row for each kind that rtnetlink carries."""

    neighbours: RtnetlinkKind[Neighbour]
    fdb_entries: RtnetlinkKind[FdbEntry]
    routes: RtnetlinkKind[Route]


KINDS: Final = Kinds(
    neighbours=RtnetlinkKind(
        made=Neighbour,
        label="neigh",
        singular="neighbour",
        plural="neighbours",
        template=neighbour_template,
        first_constant=3,
        dump=dumps.NEIGHBOURS,
        requests=lambda families, devices: [dumps.neighbours_request(f, d) for f in families for d in devices],
        text=texts.neighbour,
        command=texts.neighbour_command,
        gone=frozenset((ENOENT, ENODEV)),
        nowhere=frozenset((ENOENT, ENODEV)),
    ),
    fdb_entries=RtnetlinkKind(
        made=FdbEntry,
        label="fdb",
        singular="forwarding entry",
        plural="forwarding entries",
        template=fdb_template,
        first_constant=3,
        dump=dumps.FDB_ENTRIES,
        requests=lambda families, devices: [dumps.fdb_request(device) for device in devices],
        text=texts.fdb_entry,
        command=texts.fdb_command,
        gone=frozenset((ENOENT, ENODEV)),
        nowhere=frozenset((ENOENT, ENODEV, EINVAL)),  # EINVAL: not an Ethernet device (net/core/rtnetlink.c)
    ),
    routes=RtnetlinkKind(
        made=Route,
        label="route",
        singular="route",
        plural="routes",
        template=route_template,
        first_constant=4,
        dump=dumps.ROUTES,
        requests=lambda families, devices: [dumps.routes_request(f, RT_TABLE_MAIN) for f in families],
        text=texts.route,
        command=texts.route_command,
        gone=frozenset((ESRCH, ENODEV)),
        nowhere=frozenset((ENOENT, ENODEV)),
    ),
)


HOOKS: Final = ObjectKind(
    made=Hook,
    label="command",
    singular="command",
    plural="commands",
    text=lambda hook, names: _command_line(hook, hook.put),
    command=lambda verb, hook, names: _hook_command(verb, hook),
)
FOU_PORTS: Final = ObjectKind(FouPort, "fou", "FOU port", "FOU ports", texts.fou_port, texts.fou_command)
WIREGUARD_DEVICES: Final = ObjectKind(
    WireguardDevice,
    "wg",
    "WireGuard device",
    "WireGuard devices",
    texts.wireguard_device,
    texts.wireguard_device_command,
)
WIREGUARD_PEERS: Final = ObjectKind(
    WireguardPeer,
    "wg",
    "WireGuard peer",
    "WireGuard peers",
    texts.wireguard_peer,
    texts.wireguard_peer_command,
)
XFRM_POLICIES: Final = ObjectKind(
    XfrmPolicy, "xfrm policy", "xfrm policy", "xfrm policies", texts.policy, texts.policy_command
)
IKE_KEYS: Final = ObjectKind(IkeKey, "ike", "IKE key", "IKE keys", texts.ike_key, texts.ike_key_command)
IKE_CONNECTIONS: Final = ObjectKind(
    IkeConnection, "ike", "IKE connection", "IKE connections", texts.connection, texts.connection_command
)


def rtnetlink_kind_of(item: KernelObject) -> RtnetlinkKind[Any]:
    """The row of an object that rtnetlink carries."""
    kind = kind_of(item)
    assert isinstance(kind, RtnetlinkKind)  # noqa: S101 - the others have actuators of their own
    return kind


def kind_of(item: KernelObject) -> ObjectKind[Any]:
    """The row of an object."""
    match item:
        case Hook():
            return HOOKS
        case FouPort():
            return FOU_PORTS
        case WireguardDevice():
            return WIREGUARD_DEVICES
        case WireguardPeer():
            return WIREGUARD_PEERS
        case XfrmPolicy():
            return XFRM_POLICIES
        case IkeKey():
            return IKE_KEYS
        case IkeConnection():
            return IKE_CONNECTIONS
        case Neighbour():
            return KINDS.neighbours
        case FdbEntry():
            return KINDS.fdb_entries
        case Route():
            return KINDS.routes
        case _:
            assert_never(item)


def text(item: KernelObject, device_names: DeviceNames) -> str:
    """Prints an object as `ip route show`, `ip neigh show` or `bridge fdb show` does, without `pref medium` of IPv6
    routes.

    What WireGuard has is as `wg set` takes it, a FOU port as `ip fou`, a policy as `ip xfrm policy` does; what charon
    has is in the words of vici.
    """
    return kind_of(item).text(item, device_names)


def command(verb: Verb, item: KernelObject, device_names: DeviceNames) -> str:
    """The `ip`, `bridge` or `wg` command that does what we do with it.

    Attributes of a foreign route that have no field (`Route.rest`) are left out, but its source address and metrics.
    """
    return kind_of(item).command(verb, item, device_names)


def _hook_command(verb: Verb, hook: Hook) -> str:
    name, line = (hook.names()[verb == "del"], hook.delete if verb == "del" else hook.put)
    if not line:
        return f": there is no {name}"
    return " ".join([*(f"{key}={shlex.quote(value)}" for key, value in hook.environment), _command_line(hook, line)])


def _command_line(hook: Hook, line: str) -> str:
    """Prints a command with the values of the variables that we set; another variable is shown by its name."""
    words = split_words(line, "the command")
    named = {piece.text: f"${piece.text}" for word in words for piece in word if piece.is_variable}
    return shlex.join(expand_words(words, named | dict(hook.environment))) or "no command"
