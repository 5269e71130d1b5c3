"""What a peer's objects depend on beside its lease."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

from services.core.family import FAMILIES, Network
from services.core.network import NetworkConfig
from services.dataplane.backends.backend import Backend, NodeLinks
from services.dataplane.netlink.objects import packed_mac
from services.dataplane.peers.limits import AddressLimits, OperatorLimits, address_limits


@dataclass(frozen=True)
class PeerContext:
    """Where two are equal, a lease needs the same objects."""

    network: NetworkConfig
    backend: Backend
    links: NodeLinks
    own_subnets: tuple[Network, ...] = ()
    limits: OperatorLimits = OperatorLimits()
    blackhole: bool = False
    """The own subnets get a route that swallows what no pod takes."""
    adds_only: bool = False
    """The leases are remembered ones: what is missing is made, but what the kernel has was decided on later ones."""

    @cached_property
    def bounds(self) -> Mapping[int, AddressLimits]:
        """By IP version."""
        parts = (self.network, self.links.underlay, self.own_subnets, self.limits)
        return {family.version: address_limits(family, *parts) for family in FAMILIES}

    @cached_property
    def own_macs(self) -> Set[bytes | None]:
        """Of our own devices."""
        return {packed_mac(device.mac) for device in self.links.devices.values()}

    def differs_by_devices_only(self, earlier: "PeerContext") -> bool:
        """Whether nothing was decided anew since: then another program removed what is missing in the kernel."""
        devices = earlier.links.devices
        return replace(self, links=replace(self.links, devices=devices)) == earlier

    def differs_by_own_subnets_only(self, earlier: "PeerContext") -> bool:
        """Whether what was decided still holds for every lease that is not near the own subnets; also if equal."""
        return not self.backend.follows_own_subnets and replace(self, own_subnets=earlier.own_subnets) == earlier
