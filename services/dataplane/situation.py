"""What a peer's objects depend on beside its lease."""

from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

from services.core.family import FAMILIES, Network
from services.core.network import NetworkConfig
from services.dataplane.backends.backend import Backend, Links
from services.dataplane.bounds import Bounds, Limits, bounds_of
from services.dataplane.netlink.objects import packed_mac
from services.dataplane.ownership import Domain, Membership
from services.dataplane.reconciler import Scope


@dataclass(frozen=True)
class Situation:
    """Where two are equal, a lease needs the same objects."""

    network: NetworkConfig
    backend: Backend
    links: Links
    own_subnets: tuple[Network, ...] = ()
    limits: Limits = Limits()
    blackhole: bool = False
    """The own subnets get a route that swallows what no pod takes."""
    adds_only: bool = False
    """The leases are remembered ones: what is missing is made, but what the kernel has was decided on later ones."""

    @cached_property
    def bounds(self) -> Mapping[int, Bounds]:
        """By IP version."""
        parts = (self.network, self.links.underlay, self.own_subnets, self.limits)
        return {family.version: bounds_of(family, *parts) for family in FAMILIES}

    @cached_property
    def own_macs(self) -> Set[bytes | None]:
        """Of our own devices."""
        return {packed_mac(device.mac) for device in self.links.devices.values()}

    @cached_property
    def peers_part(self) -> Membership:
        """Whether a route leads into the network, and not to our own pods."""
        return self.scope().domain.peers_part()

    def differs_by_devices_only(self, earlier: "Situation") -> bool:
        """Whether nothing was decided anew since: what is missing in the kernel, somebody else took away."""
        devices = earlier.links.devices
        return replace(self, links=replace(self.links, devices=devices)) == earlier

    def differs_by_own_subnets_only(self, earlier: "Situation") -> bool:
        """Whether what was decided still holds for every lease that is not near the own subnets; also if equal."""
        return replace(self, own_subnets=earlier.own_subnets) == earlier

    def scope(self, direct: Callable[[], Set[Hashable]] = frozenset) -> Scope:
        """Where the objects are; `direct` is Domain's."""
        families = tuple(n.family for n in self.network.families)
        devices = {device.index for device in self.links.devices.values()}
        networks = tuple(cidr for family in FAMILIES for cidr in self.network.cidrs(family))
        domain = Domain(networks, self.own_subnets, devices, self.links.route_protocol, direct)
        return Scope(families, domain, self.adds_only)
