"""The paths to a peer: where a probe is sent, and whether somebody has to answer. Pure."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from flannelette.services.core.family import Address, Family, family_of
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.peers.peer import Overlay, Peer, PeerContext
from flannelette.services.dataplane.peers.validation import may_be_asked


class Layer(StrEnum):
    """What carries the packets of a path."""

    OVERLAY = "overlay"
    UNDERLAY = "underlay"


@dataclass(frozen=True, slots=True)
class ProbedPath:
    """A path to a peer in one address family."""

    layer: Layer
    family: Family
    """Of the peer's subnet. Its underlay may be of the other one."""
    address: Address
    """That answers at the peer."""
    mtu: int
    """Bytes of the largest IP packet that should pass."""
    must_answer: bool
    """The peer has that address while its overlay works. Otherwise nobody has it before the peer's first pod."""


def paths_of(
    peer: Peer, context: PeerContext, mtus: Mapping[Hashable, int] = MappingProxyType({})
) -> Iterator[ProbedPath]:
    """The paths to a peer: of each of its subnets that is carried, the overlay's and then the underlay's.

    `mtus` are those of routes with an MTU of their own, by their keys.
    """
    overlay = context.overlay_of(peer.lease)
    if overlay is None or peer.ignored:
        return
    for subnet in peer.candidates:
        path, route = _overlay_path(subnet, overlay), route_to(peer, family_of(subnet.cidr)) if mtus else None
        limit = mtus.get(route.key, path.mtu) if route is not None else path.mtu
        yield replace(path, mtu=min(path.mtu, limit)) if limit < path.mtu else path
        if subnet.public_address is not None:
            mtu = overlay.links.underlay.mtu
            family = family_of(subnet.cidr)
            yield ProbedPath(Layer.UNDERLAY, family, subnet.public_address, mtu, must_answer=True)


def route_to(peer: Peer, family: Family) -> Route | None:
    """Returns our route to a peer's subnet of a family; None: there is none."""
    routes = (item for item in peer.objects if isinstance(item, Route) and item.family == family.af)
    return next(routes, None)


def signs_of_life(peer: Peer, context: PeerContext) -> Iterator[ProbedPath]:
    """The paths to the host of a lease that is refused: whether somebody is there who gets no packets."""
    for subnet in peer.lease.subnets if peer.ignored else ():
        if subnet.public_address is not None and may_be_asked(subnet, context.bounds):
            family, mtu = family_of(subnet.cidr), context.links.underlay.mtu
            yield ProbedPath(Layer.UNDERLAY, family, subnet.public_address, mtu, must_answer=True)


def devices_of(peer: Peer, context: PeerContext) -> Iterator[str]:
    """Yields the devices by which packets to a peer leave: overlay devices, or the underlay's interface."""
    names = context.names()
    yield from (names[item.ifindex] for item in peer.objects if isinstance(item, Route) and item.ifindex in names)


def _overlay_path(subnet: Subnet, overlay: Overlay) -> ProbedPath:
    """Returns the path to the overlay device of the peer, which has the first address of the subnet, or to the bridge
    of pods.
    """
    family = family_of(subnet.cidr)
    device = overlay.links.devices.get(family)
    if device is not None and overlay.backend.numbers_devices:
        return ProbedPath(Layer.OVERLAY, family, subnet.cidr[0], device.mtu, must_answer=True)
    mtu = overlay.backend.mtu(overlay.links.underlay)
    return ProbedPath(Layer.OVERLAY, family, subnet.cidr[1], mtu, must_answer=False)
