"""What a backend is: pure answers about this node's links and its lease, and about what each peer needs.

A backend is a frozen dataclass that inherits from its options (`core.backend_types`) and from `Backend`, in a file
of its own, and a row of `BACKENDS`. What it does not say is as the defaults here. Below that are the routes that
backends make, and what runs the tasks of those in force, such as to follow a daemon.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, Self, TypeAlias

from flannelette.services.core.backend_types import BackendOptions
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4, Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import BackendData, Lease, Subnet
from flannelette.services.core.limits import SMALLEST_MTU
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.links.interfaces import Device, DeviceAddress, LinkKind, LinkSpec, own_address
from flannelette.services.dataplane.netlink.objects import RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, KernelObject, Route
from flannelette.services.dataplane.netlink.uapi import LOOPBACK_IFINDEX
from flannelette.services.dataplane.underlay import ConnectedRoutes, Underlay
from flannelette.services.runtime.os.names import Claims


@frozen
class NodeIdentity:
    """What the overlay's devices say of this node."""

    node: str
    own: Lease | None = None
    """The lease whose addresses the devices get."""
    published: Lease | None = None
    """What peers know of this node, also while it does not hold the lease: devices get its MACs."""
    cached: Lease | None = None
    """What peers knew of this node last: new devices get its MACs otherwise."""
    former: frozenset[Network] = frozenset()
    """Subnets that were this node's own: their addresses are removed."""
    machine: str = ""
    """The token of this machine, which nobody elsewhere can guess; empty: there is none."""

    def address(self, family: Family) -> DeviceAddress | None:
        """The address of the overlay device of a family; None: there is no own subnet yet."""
        own = self.own.subnet(family) if self.own else None
        return own_address(own.cidr) if own else None


@frozen
class NodeLinks:
    """Where objects go: the underlay, and the overlay device of each family (none for host-gw and alloc)."""

    underlay: Underlay
    devices: Mapping[Family, Device]
    route_protocol: int
    on_link: ConnectedRoutes = ConnectedRoutes()
    """Known only to a backend that `follows_routes`."""
    networks: tuple[Network, ...] = ()
    """Where the subnets of leases lie."""
    is_changing: bool = False
    """Whether another backend is there too: a peer may send by that one (ADR 35)."""
    lacking: Mapping[Family, str] = field(default_factory=dict)
    """Why there is no device of a family that should have one: IPv6, where the underlay leaves it too little."""

    def names(self) -> dict[int, str]:
        """Interface names by index, for texts."""
        return {
            LOOPBACK_IFINDEX: "lo",
            self.underlay.index: self.underlay.name,
            **{d.index: d.name for d in self.devices.values()},
        }


class Programs(Protocol):
    """What a backend may have the host run before it is in force."""

    def require_permission(self, backend: str) -> None:
        """Raises InvalidInput where the operator does not let the network configuration run programs."""
        ...

    async def output(self, command: str) -> str:
        """What a command (`core.shell_words`) prints, once for this process. Raises Unavailable until it has."""
        ...


@frozen
class NodeFiles:
    """What a backend has of this node: files, and what the names of its devices end with."""

    wireguard_key: Path = Path("/run/flannel/wgkey")
    charon_socket: Path = Path("/run/charon.vici")
    suffix: str = ""
    """The network's: `-blue`; empty: it has no name."""


class Host(NamedTuple):
    """What a backend's own task has to do with."""

    underlay: Underlay
    directory: Path
    """Directory of the services' unix sockets."""
    audit: Callable[[], None]
    """Has all objects compared with those of the kernel."""
    report: Callable[[str], None]
    """Takes the reason why the backend carries nothing, which makes the node not ready; empty: it does."""
    connected: Callable[[frozenset[Hashable]], None]
    """Takes the keys of the connections that carry packets, of a backend whose peers have such."""


class NoRoom(InvalidInput):
    """The MTU of the underlay leaves a family less than it needs."""


def require_room(what: str, mtu: int, family: Family, underlay: Underlay) -> int:
    """MTU of an overlay device after the overhead of `what` (IPIP, say). Raises NoRoom."""
    least = SMALLEST_MTU[family.version]
    if mtu < least:
        raise NoRoom(
            f"{underlay.name} has MTU {underlay.mtu}, of which {what} leaves {max(mtu, 0)} bytes for packets, and "
            f"{family} needs {least}: raise it, or choose another interface with --iface"
        )
    return mtu


def mtu_warnings(asked: int, underlay: Underlay) -> Sequence[str]:
    """Warns that the option MTU, which stands for the underlay's, is larger than that."""
    if asked <= underlay.mtu:
        return ()
    return [
        f"the backend's option MTU is {asked}, but {underlay.name} has {underlay.mtu}, which counts: "
        "take the option away, or raise the interface's MTU"
    ]


class Backend(Protocol):
    """One way to carry the overlay. Every method but `on_node`, `prepare` and `run` is pure."""

    @property
    def joins_families(self) -> bool:
        """Whether packets of one family may travel over the other, so that a node needs an address of both."""
        return False

    lease_type: ClassVar[str]
    """The BackendType that leases carry; empty where flannel writes none."""
    link_kinds: ClassVar[Sequence[type[LinkKind]]] = ()
    """The kinds of its overlay devices."""
    follows_own_subnets: ClassVar[bool] = False
    """Whether what peers need depends on the subnets of this node."""
    needs_own_subnet: ClassVar[bool] = False
    """Whether no peer is programmed while this node has no subnet."""
    ignores_public_ip: ClassVar[bool] = False
    """Whether leases publish the interface's address whatever --public-ip says, as flannel's do."""

    hand_over_obstacle: ClassVar[str] = ""
    """Why no flanneld can start beside what this one leaves, and what to do instead; empty: it can."""

    numbers_devices: ClassVar[bool] = False
    """Whether every node, one of flannel's too, has the first address of its subnet on an overlay device."""
    has_policies: ClassVar[bool] = False
    """Whether some of its objects are xfrm policies."""

    @property
    def works_by_task(self) -> bool:
        """Whether packets are carried only while the backend's own task reports nothing that prevents it."""
        return False

    @property
    def carrier(self) -> str:
        """What a firewall between nodes has to let through, in words; empty: the packets of pods themselves."""
        return ""

    @property
    def lease_mark(self) -> Hashable:
        """What leases say of the backend: by it, leases of two configurations can be told apart."""
        return self.lease_type

    @property
    def variant(self) -> str:
        """What tells it from another of its type beside it, for people; empty: there can be none."""
        return ""

    @property
    def follows_routes(self) -> bool:
        """Whether what peers need depends on which addresses are connected."""
        return False

    @property
    def way(self) -> str:
        """Says which way packets take, and why, where the backend knows several; empty: it has one."""
        return ""

    @classmethod
    def of(cls, options: BackendOptions) -> Self:
        """The backend with these options, which are its fields. Raises InvalidInput, naming the option."""
        return cls()

    def on_node(self, files: NodeFiles) -> Self:
        """The backend with what this node keeps for it. May read and write files. Raises Misconfigured."""
        return self

    async def prepare(self, network: NetworkConfig, programs: Programs | None) -> Self:
        """The backend with what it takes from the host. Raises InvalidInput, Unavailable. Called at each new choice.

        None: there is nobody to run programs.
        """
        return self

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """The overlay device of a family; None: the underlay is enough. Raises InvalidInput, Misconfigured."""
        return None

    def mtu(self, underlay: Underlay) -> int:
        """The MTU of pods, in bytes."""
        return underlay.mtu

    def warnings(self, underlay: Underlay) -> Sequence[str]:
        """What the options ask for and the underlay does not give."""
        return ()

    def lease_data(self, family: Family, device: Device | None) -> BackendData | None:
        """What the node's lease publishes in a family, which has this device."""
        return None

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """Why a peer's subnet cannot be carried; empty: it can, which most need a public address for."""
        return "" if subnet.public_address else f"the lease has no public {family_of(subnet.cidr)} address"

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """The objects that carry these subnets of one peer, of which none is rejected."""
        ...

    def node_objects(self, own_subnets: Sequence[Network], links: NodeLinks) -> Iterable[KernelObject]:
        """The objects that the node needs independent of its peers, beside its devices and their addresses."""
        return ()

    async def run(self, host: Host) -> None:
        """The backend's own task, cancelled when another backend or underlay is in force."""
        return


class Backends(NamedTuple):
    """The backends that a service has."""

    make: Callable[[NetworkConfig], Backend]
    """The backend of a network. Raises InvalidInput, also if this version does not support it."""
    link_kinds: Sequence[type[LinkKind]]
    """The kinds of devices that some backend makes."""
    programs: Programs | None = None
    """Where they have programs run; None: nowhere."""
    claims: Claims | None = None
    """What this network uses of the namespace; None: nobody asks."""


def direct_route(family: Family, cidr: Network, gateway: Address, links: NodeLinks, *, onlink: bool = False) -> Route:
    """`cidr via gateway dev <underlay>`: not `onlink`, the kernel refuses a gateway that is not connected."""
    return _route(family, cidr, gateway, links.underlay.index, links, onlink=onlink)


def tunnel_route(family: Family, cidr: Network, gateway: Address | None, links: NodeLinks) -> Route:
    """`cidr via gateway dev <overlay device> onlink`: the device takes any gateway. None: the network address."""
    return _route(family, cidr, gateway, links.devices[family].index, links, onlink=True)


def device_route(family: Family, cidr: Network, links: NodeLinks) -> Route:
    """`cidr dev <overlay device>`: the device itself knows where packets go."""
    scope = RT_SCOPE_LINK if family is IPV4 else RT_SCOPE_UNIVERSE
    return _route(family, cidr, None, links.devices[family].index, links)._replace(gateway=b"", scope=scope)


def network_route(family: Family, cidr: Network, links: NodeLinks) -> Route:
    """`network dev <overlay device>`, with the key that flannel's has, so that the one replaces the other."""
    return device_route(family, cidr, links)._replace(metric=family.default_metric)


def _route(
    family: Family, cidr: Network, gateway: Address | None, ifindex: int, links: NodeLinks, *, onlink: bool = False
) -> Route:
    destination = cidr.network_address.packed
    return Route(
        destination,
        destination if gateway is None else gateway.packed,
        route_metric(cidr),
        family.af,
        cidr.prefixlen,
        ifindex,
        links.route_protocol,
        onlink=onlink,
    )


def route_metric(subnet: Network) -> int:
    """1 to 65536, a pure function of the subnet: REPLACE stays idempotent.

    Linux hashes routes by protocol, scope, preferred source, metric and device, but not by gateway
    (fib_create_info in net/ipv4/fib_semantics.c): routes of one device and one metric share one chain, and N of
    them cost O(N²). IPv6 does not need it and gets the same, so that the families stay alike.
    """
    size = subnet.max_prefixlen - subnet.prefixlen
    return 1 + (int(subnet.network_address) >> size) % 65536


InForce: TypeAlias = tuple[Backend, Underlay]
"""A backend and the underlay that it uses."""


@frozen
class TaskReports:
    """What the tasks have told."""

    reasons: Mapping[InForce, str] = field(default_factory=dict)
    """Why a backend carries nothing; empty: it does."""
    connected: frozenset[Hashable] = frozenset()
    """See Host."""

    @property
    def working(self) -> frozenset[InForce]:
        """The backends that carry packets, as far as their tasks decide that."""
        return frozenset(each for each, reason in self.reasons.items() if not reason)


async def run_backend_tasks(
    in_force: Callable[[], Sequence[InForce]],
    directory: Path,
    changed: Callable[[], Awaitable[None]],
    audit: Callable[[], None],
    report: Callable[[TaskReports], None],
) -> None:
    """Runs `Backend.run` of each backend in force until cancelled, and cancels it when that, or its underlay, is not
    in force any more.

    `changed` returns after each step of the controller; `report` takes what the backends in force have reported. A
    task that ends by itself is not started again; one that fails ends the service.
    """
    reasons: dict[InForce, str] = {}
    connected: dict[InForce, frozenset[Hashable]] = {}
    tasks: dict[InForce, asyncio.Task[None]] = {}

    def tell(each: InForce, reason: str) -> None:
        if each in in_force():
            reasons[each] = reason
            tell_all()

    def tell_connected(each: InForce, keys: frozenset[Hashable]) -> None:
        if each in in_force():
            connected[each] = keys
            tell_all()

    def tell_all() -> None:
        report(TaskReports(dict(reasons), frozenset().union(*connected.values())))

    async with asyncio.TaskGroup() as group:
        while True:
            now = in_force()
            gone = {each: tasks.pop(each) for each in tasks.keys() - set(now)}
            for task in gone.values():
                task.cancel()
            if gone:
                await asyncio.wait(gone.values())  # the next one may need its port or its device
                for each in gone:
                    reasons.pop(each, None)
                    connected.pop(each, None)
                tell_all()
            for each in now:
                if each not in tasks:
                    host = Host(each[1], directory, audit, partial(tell, each), partial(tell_connected, each))
                    tasks[each] = group.create_task(each[0].run(host))
            await changed()
