"""What is programmed for peers, as values: routes, neighbours, FDB entries, WireGuard, FOU, xfrm policies, hooks.

Tuples of int and bytes, because a node with 10,000 peers has 30,000 of them and compares all in a resync.
Addresses are packed (4 or 16 bytes), MACs 6 bytes; `ipaddress` ends before this module. Both address families
are the same types. The first field tells the kinds apart: values of different kinds are never equal, and in
order of kind (`steps`) nothing is made before what it leans on.
"""

from collections.abc import Callable, Collection, Hashable, Set
from operator import itemgetter
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from flannelette.services.core.backend_types import IPSEC_MARK, Secret
from flannelette.services.core.frozen import frozen

ENCAP_FOU: Final = 1
"""TUNNEL_ENCAP_FOU (linux/if_tunnel.h): how a tunnel device says that it sends by FOU."""
FOU_PORT: Final = -3
"""Number of the kind, which is its place in the order of work: before rtnetlink's kinds."""


class _FouFields(NamedTuple):
    kind: int
    local: bytes
    port: int
    ifindex: int


class FouPort(_FouFields):
    """A UDP port of a packed local IPv4 address, whose datagrams hold IPv4 packets.

    The kernel marks no port as anybody's. `ifindex` is the tunnel device that sends from this very port: by it the
    port is ours, and with it the port goes.
    """

    __slots__ = ()

    def __new__(cls, local: bytes, port: int, ifindex: int) -> "FouPort":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (FOU_PORT, local, port, ifindex))

    @property
    def key(self) -> Hashable:
        """The identity of the port in the kernel: address and port."""
        return FOU_PORT, self.local, self.port


XFRM_POLICY: Final = -6
IKE_KEY: Final = -5
IKE_CONNECTION: Final = -4
"""Numbers of the kinds, which are their places in the order of work: before rtnetlink's kinds."""

REQID, TUNNEL_PRIORITY = IPSEC_MARK
"""Reqid and priority of our policies with a template; the states that belong to them have the reqid too. Of
priorities the lesser number is asked first; flannel's have 0."""
ALLOW_PRIORITY: Final = 0x666C616E
BLOCK_PRIORITY: Final = ALLOW_PRIORITY + 1
"""Mark our policies without a template: after every other policy."""

DIR_IN: Final = 0
DIR_OUT: Final = 1
DIR_FWD: Final = 2
ALLOW: Final = 0
BLOCK: Final = 1


class _PolicyFields(NamedTuple):
    kind: int
    direction: int
    src: bytes
    src_length: int
    dst: bytes
    dst_length: int
    action: int
    priority: int
    tunnel_src: bytes
    tunnel_dst: bytes
    reqid: int
    is_optional: bool
    rest: bytes


class XfrmPolicy(_PolicyFields):
    """What the kernel does with packets from `src` to `dst`: an ESP tunnel, nothing (allow), or drops them (block).

    * `tunnel_src` and `tunnel_dst` are the ends of the tunnel; empty, with `reqid` 0: there is none.
    * `is_optional`: packets that did not come by the tunnel are let in, too.
    * `rest` is whatever else the kernel has of it, as limits. Empty on all of ours.
    """

    __slots__ = ()
    ifindex: ClassVar[int] = 0

    def __new__(
        cls,
        direction: int,
        src: bytes,
        src_length: int,
        dst: bytes,
        dst_length: int,
        action: int = ALLOW,
        priority: int = 0,
        tunnel_src: bytes = b"",
        tunnel_dst: bytes = b"",
        reqid: int = 0,
        is_optional: bool = False,
        rest: bytes = b"",
    ) -> "XfrmPolicy":
        """The fields in their order, without the kind."""
        more = (action, priority, tunnel_src, tunnel_dst, reqid, is_optional, rest)
        return tuple.__new__(cls, (XFRM_POLICY, direction, src, src_length, dst, dst_length, *more))

    @property
    def key(self) -> Hashable:
        """Direction and selector: an update of the same replaces this one, whatever its priority."""
        return self[:6]

    @property
    def is_marked(self) -> bool:
        """Whether it is ours."""
        if self.tunnel_src:
            return (self.reqid, self.priority) == (REQID, TUNNEL_PRIORITY)
        return self.priority in (ALLOW_PRIORITY, BLOCK_PRIORITY)

    @property
    def is_like_flannels(self) -> bool:
        """Whether a flanneld may have made it."""
        return bool(self.tunnel_src) and (self.reqid, self.priority) == (REQID, 0)


class _KeyFields(NamedTuple):
    kind: int
    owner: str
    psk: Secret


class IkeKey(_KeyFields):
    """The pre-shared key by which charon authenticates this address, its own or a peer's.

    charon does not tell a key: `psk` is empty where another process has loaded it.
    """

    __slots__ = ()
    ifindex: ClassVar[int] = 0

    def __new__(cls, owner: str, psk: Secret) -> "IkeKey":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (IKE_KEY, owner, psk))

    @property
    def key(self) -> Hashable:
        """The identity of the key in charon: the address of its owner."""
        return IKE_KEY, self.owner


class _ConnectionFields(NamedTuple):
    kind: int
    local: str
    local_id: str
    own_subnet: str
    remote: str
    peer_subnet: str
    encap: bool
    proposal: str


class IkeConnection(_ConnectionFields):
    """A connection of charon: which tunnel to which peer is negotiated, and kept.

    Addresses and subnets are texts, as vici has them; `local` is the underlay's address, `local_id` what peers know.
    """

    __slots__ = ()
    ifindex: ClassVar[int] = 0

    def __new__(
        cls,
        local: str,
        local_id: str,
        own_subnet: str,
        remote: str,
        peer_subnet: str,
        encap: bool,
        proposal: str,
    ) -> "IkeConnection":
        """The fields in their order, without the kind."""
        more = (own_subnet, remote, peer_subnet, encap, proposal)
        return tuple.__new__(cls, (IKE_CONNECTION, local, local_id, *more))

    @property
    def key(self) -> Hashable:
        """All of it: charon updates no connection, so that another one is loaded before this one is unloaded."""
        return tuple(self)


WIREGUARD_DEVICE: Final = -2
WIREGUARD_PEER: Final = -1
"""Numbers of the kinds, which are their places in the order of work: before rtnetlink's kinds."""
KEY_BYTES: Final = 32

AllowedIps: TypeAlias = tuple[tuple[bytes, int], ...]
"""Packed address and prefix length of each, sorted."""


class _DeviceFields(NamedTuple):
    kind: int
    public_key: bytes
    private_key: Secret
    port: int
    fwmark: int
    ifindex: int


class WireguardDevice(_DeviceFields):
    """The key pair and the UDP port of a device. A device without a key carries nothing, and has no such object."""

    __slots__ = ()

    def __new__(
        cls, public_key: bytes, private_key: Secret, port: int, fwmark: int, ifindex: int
    ) -> "WireguardDevice":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (WIREGUARD_DEVICE, public_key, private_key, port, fwmark, ifindex))

    @property
    def key(self) -> Hashable:
        """The identity of the configuration: the device."""
        return WIREGUARD_DEVICE, self.ifindex


class _PeerFields(NamedTuple):
    kind: int
    public_key: bytes
    allowed_ips: AllowedIps
    endpoint: bytes
    port: int
    preshared_key: Secret
    keepalive: int
    ifindex: int


class WireguardPeer(_PeerFields):
    """A peer of a device: packets to its allowed IPs are encrypted for its key and sent to its endpoint.

    * `endpoint` is a packed address, as its lease says it; empty, with port 0: the peer has to send first. The kernel
      follows a peer that moves; where a session lives, that is no difference (see `WireguardSocket`).
    * `preshared_key` is empty where there is none. `keepalive` is in seconds; 0: none.
    """

    __slots__ = ()

    def __new__(
        cls,
        public_key: bytes,
        allowed_ips: AllowedIps,
        endpoint: bytes,
        port: int,
        preshared_key: Secret,
        keepalive: int,
        ifindex: int,
    ) -> "WireguardPeer":
        """The fields in their order, without the kind."""
        rest = (endpoint, port, preshared_key, keepalive, ifindex)
        return tuple.__new__(cls, (WIREGUARD_PEER, public_key, allowed_ips, *rest))

    @property
    def key(self) -> Hashable:
        """The identity of the peer in the kernel: device and public key."""
        return WIREGUARD_PEER, self.ifindex, self.public_key


class Keyed(Hashable, Protocol):
    """A value of which the kernel has one for each key; a new value with the same key replaces the old one."""

    @property
    def key(self) -> Hashable:
        """What distinguishes the value from others in the kernel."""
        ...


T = TypeVar("T", bound=Keyed)


@frozen
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
