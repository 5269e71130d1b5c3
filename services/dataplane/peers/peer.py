"""From leases to kernel objects: what one peer needs, what the node itself needs, and what both depend on. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, TypeAlias

from services.core.backend_types import shares_addresses
from services.core.family import FAMILIES, Network, family_of
from services.core.leases.conflicts import Loss
from services.core.leases.lease import Lease, Subnet
from services.core.light_dataclass import light_dataclass
from services.core.network import NetworkConfig
from services.dataplane.backends.backend import Backend, NodeLinks
from services.dataplane.netlink.objects import RTN_BLACKHOLE, KernelObject, Route, packed_mac
from services.dataplane.netlink.uapi import AF_INET6, LOOPBACK_IFINDEX
from services.dataplane.peers.validation import (
    Bounds,
    OperatorLimits,
    Rejection,
    address_limits,
    reject,
    reject_own,
)

Losses: TypeAlias = Mapping[tuple[str, int], Loss]
"""See services.core.leases.conflicts."""

_NONE: Final[Losses] = {}
_BLACKHOLE_METRIC: Final = 2**32 - 1
"""The last there is, so that every other route to the subnet wins, and the bridge's first of all."""


@dataclass(frozen=True)
class PeerContext:
    """What a peer's objects depend on beside its lease. Where two are equal, a lease needs the same objects."""

    network: NetworkConfig
    backend: Backend
    links: NodeLinks
    own_subnets: tuple[Network, ...] = ()
    limits: OperatorLimits = OperatorLimits()
    blackhole: bool = False
    """The own subnets get a route that swallows what no pod takes."""
    adds_only: bool = False
    """The leases are cached ones: missing objects are added, but those in the kernel are newer and stay."""

    @cached_property
    def bounds(self) -> Bounds:
        """By IP version."""
        own_macs = {packed_mac(device.mac) for device in self.links.devices.values()}
        parts = (
            self.network,
            self.links.underlay,
            self.own_subnets,
            self.limits,
            own_macs,
            shares_addresses(self.backend.lease_type),
        )
        return {family.version: address_limits(family, *parts) for family in FAMILIES}

    def differs_by_devices_only(self, earlier: "PeerContext") -> bool:
        """Whether nothing was decided anew since: then another program removed what is missing in the kernel."""
        devices = earlier.links.devices
        return replace(self, links=replace(self.links, devices=devices)) == earlier

    def differs_by_own_subnets_only(self, earlier: "PeerContext") -> bool:
        """Whether what was decided still holds for every lease that is not near the own subnets; also if equal."""
        return not self.backend.follows_own_subnets and replace(self, own_subnets=earlier.own_subnets) == earlier


@light_dataclass
class Peer:
    """A lease of another node, and what it needs in the kernel."""

    lease: Lease
    objects: tuple[KernelObject, ...]
    refusals: tuple[Rejection, ...] = ()
    """What of it is not carried."""
    candidates: tuple[Subnet, ...] = ()
    """The subnets that are, or would be if it were alone."""

    @property
    def reason(self) -> str:
        """Why it, or a part of it, is not carried; empty: it is."""
        return "; ".join(dict.fromkeys(each.reason for each in self.refusals))

    @property
    def ignored(self) -> str:
        """Why it gets nothing; empty if it gets something."""
        return "" if self.objects else self.reason


def peer_of(lease: Lease, context: PeerContext, losses: Losses = _NONE) -> Peer:
    """The peer. A lease is data from the network: what does not fit is refused with a reason, never programmed."""
    carried: tuple[Subnet, ...] = ()
    refusals: tuple[Rejection, ...] = ()
    candidates: tuple[Subnet, ...] = ()
    subnets: tuple[Subnet, ...] = lease.subnets
    backend, general = context.backend, _general(lease, context)
    if general is not None:
        refusals, subnets = (general,), ()
    for subnet in subnets:
        found = reject(subnet, context.bounds)
        if found is None and (reason := backend.rejection(subnet, context.links)):
            found = Rejection("backend-data", reason)
        if found is None:
            candidates += (subnet,)
            loss = losses.get((lease.name, subnet.cidr.version)) if losses else None
            found = Rejection(loss.kind, loss.reason) if loss else None
        if found is None:
            carried += (subnet,)
        else:
            refusals += (found,)
    if candidates == lease.subnets:
        candidates = lease.subnets  # once in memory, as nearly always
    objects = backend.peer_objects(carried, context.own_subnets, context.links) if carried else ()
    return Peer(lease, tuple(objects), refusals, candidates)


def node_objects(context: PeerContext) -> frozenset[KernelObject]:
    """What the node needs independent of its peers: the backend's objects, and flannel's `--ip-blackhole-route`.

    An own lease is data from the network too: for a subnet that must not be ours there is nothing.
    """
    usable = [cidr for cidr in context.own_subnets if reject_own(Subnet(cidr), context.bounds) is None]
    of_backend = frozenset(context.backend.node_objects(usable, context.links))
    protocol = context.links.route_protocol
    return of_backend | {_blackhole(cidr, protocol) for cidr in usable if context.blackhole}


def _blackhole(cidr: Network, protocol: int) -> Route:
    """Where packets to an address of an own subnet that no pod has end.

    Without it they leave through the default route, and come back where that leads into the overlay.
    """
    af = family_of(cidr).af
    device = LOOPBACK_IFINDEX if af == AF_INET6 else 0  # where the kernel puts them
    packed, length = cidr.network_address.packed, cidr.prefixlen
    return Route(packed, b"", _BLACKHOLE_METRIC, af, length, device, protocol, route_type=RTN_BLACKHOLE)


def _general(lease: Lease, context: PeerContext) -> Rejection | None:
    """What speaks against the lease as a whole."""
    if lease.backend_type != context.backend.lease_type:
        theirs, ours = (kind or "none" for kind in (lease.backend_type, context.backend.lease_type))
        return Rejection("backend", f"the backend type is {theirs}, that of the network is {ours}")
    if not lease.subnets:
        return Rejection("no-subnet", "the lease has no subnet")
    if len(lease.subnets) > 1 and len({subnet.cidr.version for subnet in lease.subnets}) < len(lease.subnets):
        return Rejection("two-subnets", "the lease has two subnets of one address family")
    return None
