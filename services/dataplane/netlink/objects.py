"""What is programmed for peers, as values: routes, neighbours, FDB entries, WireGuard, FOU, xfrm policies, hooks.

Tuples of int and bytes, because a node with 10,000 peers has 30,000 of them and compares all in a resync.
Addresses are packed (4 or 16 bytes), MACs 6 bytes; `ipaddress` ends before this module. Both address families
are the same types. The first field tells the kinds apart: values of different kinds are never equal, and in
order of kind (`steps`) nothing is made before what it leans on.
"""

from collections.abc import Callable, Collection, Hashable, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from flannelette.services.dataplane.netlink.fou.values import FouPort
from flannelette.services.dataplane.netlink.ipsec.values import IkeConnection, IkeKey, XfrmPolicy
from flannelette.services.dataplane.netlink.wireguard.values import WireguardDevice, WireguardPeer


class Keyed(Hashable, Protocol):
    """A value of which the kernel has one for each key; a new value with the same key replaces the old one."""

    @property
    def key(self) -> Hashable:
        """What distinguishes the value from others in the kernel."""
        ...


T = TypeVar("T", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """What to put (add or replace) and then what to delete. Both empty: everything is as it should be."""

    put: frozenset[T]
    delete: frozenset[T]

    def __len__(self) -> int:
        return len(self.put) + len(self.delete)


def plan(actual: Set[T], desired: Set[T], *, purge: bool = True) -> Plan[T]:
    """What brings `actual` to `desired`.

    A value whose key is wanted for another value is replaced, never deleted. Without `purge` (no complete
    snapshot yet) nothing is deleted at all.
    """
    put = frozenset(desired - actual)
    # Most often all that is there is wanted, and then one comparison of two large sets is enough to know it.
    has_strangers = purge and len(actual) > len(desired) - len(put)
    strangers: Collection[T] = actual - desired if has_strangers else ()
    wanted = {value.key for value in desired} if strangers else set()
    return Plan(put, frozenset(value for value in strangers if value.key not in wanted))


# Values of a route's fields (linux/rtnetlink.h).
RT_TABLE_MAIN: Final = 254
RT_TABLE_LOCAL: Final = 255
RTPROT_KERNEL: Final = 2
RTPROT_BOOT: Final = 3
RT_SCOPE_UNIVERSE: Final = 0
RT_SCOPE_LINK: Final = 253
RTN_UNICAST: Final = 1
RTN_LOCAL: Final = 2
RTN_BLACKHOLE: Final = 6
RTN_THROW: Final = 9
DROPS: Final = frozenset((RTN_BLACKHOLE, 7, 8, RTN_THROW))
"""Types of routes that lead nowhere: 7 is unreachable, 8 prohibit."""

HOOK: Final = 0
NEIGHBOUR: Final = 1
FDB_ENTRY: Final = 2
ROUTE: Final = 3


def _fields(made: type[NamedTuple], names: str) -> Callable[[tuple[Any, ...]], Hashable]:
    """What picks these fields at once: a plan of 10,000 peers asks 30,000 times."""
    return itemgetter(*map(made._fields.index, names.split()))


class _RouteFields(NamedTuple):
    kind: int
    dst: bytes
    gateway: bytes
    metric: int
    family: int
    length: int
    ifindex: int
    protocol: int
    scope: int
    route_type: int
    onlink: bool
    table: int
    tos: int
    rest: bytes


_ROUTE_KEY: Final = _fields(_RouteFields, "kind family table dst length tos metric")
_ROUTE_DESTINATION: Final = _fields(_RouteFields, "family table dst length")


class Route(_RouteFields):
    """A route.

    * `dst` is always a whole address, also of a default route (length 0); `gateway` is `b""` when there is none.
    * `metric` 0 in IPv4 is a value, but a delete that names it matches every metric (the kernel cannot say it
      otherwise); in IPv6 the kernel turns 0 into 1024, so write 1024.
    * `ifindex` 0: none (blackhole, multipath, nexthop object).
    * `rest` is every attribute that has no field here, as the kernel wrote it: prefsrc, metrics (mtu ...),
      multipath, nexthop object, encapsulation. Empty on all of ours but those with a prefsrc (ipsec), so whatever
      has some is not ours by value.
    * Left out, because they are the state of the device and not of the route: dead, linkdown, offload.
    """

    __slots__ = ()

    def __new__(
        cls,
        dst: bytes,
        gateway: bytes,
        metric: int,
        family: int,
        length: int,
        ifindex: int,
        protocol: int,
        scope: int = RT_SCOPE_UNIVERSE,
        route_type: int = RTN_UNICAST,
        onlink: bool = False,
        table: int = RT_TABLE_MAIN,
        tos: int = 0,
        rest: bytes = b"",
    ) -> "Route":
        """The fields in their order, without the kind."""
        how = (family, length, ifindex, protocol, scope, route_type, onlink, table, tos, rest)
        return tuple.__new__(cls, (ROUTE, dst, gateway, metric, *how))

    @property
    def key(self) -> Hashable:
        """Family, table, destination, TOS and metric: a REPLACE of the same replaces this one."""
        return _ROUTE_KEY(self)

    @property
    def destination(self) -> Hashable:
        """Where packets match it: the key without what chooses among routes."""
        return _ROUTE_DESTINATION(self)


class _NeighbourFields(NamedTuple):
    kind: int
    dst: bytes
    mac: bytes
    family: int
    ifindex: int


_NEIGHBOUR_KEY: Final = _fields(_NeighbourFields, "kind ifindex dst")


class Neighbour(_NeighbourFields):
    """A permanent neighbour (ARP or NDP) entry: on this device `dst` has this MAC."""

    __slots__ = ()

    def __new__(cls, dst: bytes, mac: bytes, family: int, ifindex: int) -> "Neighbour":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (NEIGHBOUR, dst, mac, family, ifindex))

    @property
    def key(self) -> Hashable:
        """The identity of the neighbour in the kernel: device and address."""
        return _NEIGHBOUR_KEY(self)


class _FdbFields(NamedTuple):
    kind: int
    mac: bytes
    dst: bytes
    ifindex: int
    port: int
    vni: int
    via: int


_FDB_KEY: Final = _fields(_FdbFields, "kind ifindex mac")


class FdbEntry(_FdbFields):
    """A permanent entry in the forwarding database of a VXLAN device: frames to this MAC go to `dst`.

    `dst` is of the underlay's family (its length says which). `port`, `vni` and `via` (a device) are 0 where
    they are the device's own, as on all of ours.
    """

    __slots__ = ()

    def __new__(cls, mac: bytes, dst: bytes, ifindex: int, port: int = 0, vni: int = 0, via: int = 0) -> "FdbEntry":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (FDB_ENTRY, mac, dst, ifindex, port, vni, via))

    @property
    def key(self) -> Hashable:
        """The identity of the entry in the kernel: device and MAC."""
        return _FDB_KEY(self)


class _HookFields(NamedTuple):
    kind: int
    subject: str
    put: str
    delete: str
    environment: tuple[tuple[str, str], ...]
    stdin: str
    is_earlier: bool


class Hook(_HookFields):
    """Two commands: `put` is run when the hook is put, also in the place of another one, `delete` when it is deleted.

    * `subject` is the subnet that they concern; empty: this node. Commands are command lines (`core.shell_words`);
      an empty one runs nothing.
    * What they are told is in `environment` and `stdin`, never in the command line.
    * `is_earlier`: an earlier process ran the command, or it has failed, so that it is to be run again if the hook is
      still wanted.
    """

    __slots__ = ()
    ifindex: ClassVar[int] = 0

    def __new__(
        cls,
        subject: str,
        put: str,
        delete: str,
        environment: tuple[tuple[str, str], ...],
        stdin: str = "",
        is_earlier: bool = False,
    ) -> "Hook":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (HOOK, subject, put, delete, environment, stdin, is_earlier))

    @property
    def key(self) -> Hashable:
        """The identity of the hook: its subject."""
        return HOOK, self.subject

    def names(self) -> tuple[str, str]:
        """What flannel's configuration calls the two commands."""
        return (
            ("SubnetAddCommand", "SubnetRemoveCommand") if self.subject else ("PostStartupCommand", "ShutdownCommand")
        )


def packed_mac(text: str) -> bytes | None:
    """The six bytes of a MAC address with colons; None: it is none."""
    try:
        packed = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        return None
    return packed if len(packed) == 6 and len(text) == 17 else None


RtnetlinkObject: TypeAlias = Route | Neighbour | FdbEntry
KernelObject: TypeAlias = (
    RtnetlinkObject | WireguardDevice | WireguardPeer | FouPort | XfrmPolicy | IkeKey | IkeConnection | Hook
)
Verb: TypeAlias = Literal["replace", "del"]

_BY_KIND: Final = itemgetter(0)


def verb_of(plan: Plan[KernelObject], item: KernelObject) -> Verb:
    """What a plan does with one of its objects."""
    return "replace" if item in plan.put else "del"


def steps(plan: Plan[KernelObject]) -> list[tuple[Verb, list[KernelObject]]]:
    """A plan in the order in which it is carried out.

    Puts before deletes; everything else before the routes that lead to it, and on delete after them, so that at no
    moment a route leads nowhere.
    """
    return [
        ("replace", sorted(plan.put, key=_BY_KIND)),
        ("del", sorted(plan.delete, key=_BY_KIND, reverse=True)),
    ]
