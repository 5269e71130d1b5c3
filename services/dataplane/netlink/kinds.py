"""The table of kernel object kinds: one row says everything that the dataplane knows of a kind.

A new kind is a class in `objects`, a member of `KernelObject` and a row here. mypy refuses a member without a row
(`kind_of`), a row without a column, and a column of another kind's type.
"""

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from errno import EINVAL, ENODEV, ENOENT, ESRCH
from typing import Any, Final, Generic, NamedTuple, TypeVar, assert_never

from flannelette.services.core.formats.shell_words import expand_words, split_words
from flannelette.services.dataplane.netlink import dumps, templates
from flannelette.services.dataplane.netlink import iproute2_text as iproute2
from flannelette.services.dataplane.netlink.dumps import MessageFormat, Request
from flannelette.services.dataplane.netlink.fou import values as fou
from flannelette.services.dataplane.netlink.fou.values import FouPort
from flannelette.services.dataplane.netlink.iproute2_text import DeviceNames
from flannelette.services.dataplane.netlink.ipsec import values as ipsec
from flannelette.services.dataplane.netlink.ipsec.values import IkeConnection, IkeKey, XfrmPolicy
from flannelette.services.dataplane.netlink.objects import (
    RT_TABLE_MAIN,
    FdbEntry,
    Hook,
    KernelObject,
    Neighbour,
    Route,
    Verb,
)
from flannelette.services.dataplane.netlink.templates import Template
from flannelette.services.dataplane.netlink.wireguard import values as wg
from flannelette.services.dataplane.netlink.wireguard.values import WireguardDevice, WireguardPeer

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
        template=templates.neighbour,
        first_constant=3,
        dump=dumps.NEIGHBOURS,
        requests=lambda families, devices: [dumps.neighbours_request(f, d) for f in families for d in devices],
        text=iproute2.neighbour,
        command=iproute2.neighbour_command,
        gone=frozenset((ENOENT, ENODEV)),
        nowhere=frozenset((ENOENT, ENODEV)),
    ),
    fdb_entries=RtnetlinkKind(
        made=FdbEntry,
        label="fdb",
        singular="forwarding entry",
        plural="forwarding entries",
        template=templates.fdb_entry,
        first_constant=3,
        dump=dumps.FDB_ENTRIES,
        requests=lambda families, devices: [dumps.fdb_request(device) for device in devices],
        text=iproute2.fdb_entry,
        command=iproute2.fdb_command,
        gone=frozenset((ENOENT, ENODEV)),
        nowhere=frozenset((ENOENT, ENODEV, EINVAL)),  # EINVAL: not an Ethernet device (net/core/rtnetlink.c)
    ),
    routes=RtnetlinkKind(
        made=Route,
        label="route",
        singular="route",
        plural="routes",
        template=templates.route,
        first_constant=4,
        dump=dumps.ROUTES,
        requests=lambda families, devices: [dumps.routes_request(f, RT_TABLE_MAIN) for f in families],
        text=iproute2.route,
        command=iproute2.route_command,
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
FOU_PORTS: Final = ObjectKind(FouPort, "fou", "FOU port", "FOU ports", fou.text, fou.command)
WIREGUARD_DEVICES: Final = ObjectKind(
    WireguardDevice, "wg", "WireGuard device", "WireGuard devices", wg.device, wg.device_command
)
WIREGUARD_PEERS: Final = ObjectKind(
    WireguardPeer, "wg", "WireGuard peer", "WireGuard peers", wg.peer, wg.peer_command
)
XFRM_POLICIES: Final = ObjectKind(
    XfrmPolicy, "xfrm policy", "xfrm policy", "xfrm policies", ipsec.policy, ipsec.policy_command
)
IKE_KEYS: Final = ObjectKind(IkeKey, "ike", "IKE key", "IKE keys", ipsec.key, ipsec.key_command)
IKE_CONNECTIONS: Final = ObjectKind(
    IkeConnection, "ike", "IKE connection", "IKE connections", ipsec.connection, ipsec.connection_command
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

    Attributes of a foreign route that have no field (`Route.rest`) are not in it, but for the source address.
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
