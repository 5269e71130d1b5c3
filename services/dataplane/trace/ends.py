"""Source and destination of a packet: which addresses they are, and whose. Pure."""

from collections.abc import Iterable, Set
from dataclasses import dataclass
from ipaddress import ip_address

from flannelette.services.core.errors import InvalidInput, NotFound
from flannelette.services.core.family import Address, Family, Network, family_of
from flannelette.services.dataplane.diagnose.seen import gateway_of
from flannelette.services.dataplane.peers.peer import Peer, PeerContext


@dataclass(frozen=True, slots=True)
class End:
    """One end of a packet's path."""

    address: Address
    node: str = ""
    """Who has it; empty: no lease says so."""
    peer: Peer | None = None
    """The other node that has it."""
    subnet: Network | None = None
    """Of the lease."""
    is_here: bool = False
    """This node has it, or one of its pods."""
    is_host: bool = False
    """It is an address of this host itself, not of a pod."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Both, of one family."""

    source: End
    destination: End

    @property
    def family(self) -> Family:
        """The address family of the packet."""
        return family_of(self.destination.address)


@dataclass(frozen=True, slots=True)
class Places:
    """The addresses of the node, its peers and this host."""

    node: str
    context: PeerContext
    peers: Iterable[Peer]
    held: Set[bytes] = frozenset()
    """Addresses of this host."""


def ends_of(places: Places, source: str, destination: str, version: int = 0) -> Ends:
    """What two texts mean, addresses or names of nodes, whose addresses are of this IP version (0: any, IPv4 first).

    Raises InvalidInput, NotFound.
    """
    there = _addresses(places, "destination", destination)
    here = _addresses(places, "source", source)
    pairs = [(a, b) for a in here for b in there if a.version == b.version and version in (0, a.version)]
    if not pairs:
        what = f"IPv{version} addresses" if version else "address family in common"
        raise InvalidInput(f"source {source} and destination {destination} have no {what}")
    a, b = pairs[0]
    if a == b:
        raise InvalidInput(f"source and destination are both {a}: no packet leaves for there")
    return Ends(_end(places, a), _end(places, b))


def _addresses(places: Places, field: str, text: str) -> list[Address]:
    """One, or those of a node in the overlay, IPv4 first."""
    try:
        return [ip_address(text)]
    except ValueError:
        pass
    if text and text == places.node:
        found = list(places.context.own_subnets)
    else:
        found = [s.cidr for peer in places.peers if text and peer.lease.node == text for s in peer.lease.subnets]
    if found:
        is_numbered = places.context.backend.numbers_devices
        return sorted((n[0] if is_numbered else gateway_of(n) for n in found), key=lambda a: a.version)
    raise NotFound(
        f"{field} {text!r} is no IP address, and no node with a lease has this name: `flannelette peers` lists them"
    )


def _end(places: Places, value: Address) -> End:
    is_host = value.packed in places.held
    for subnet in places.context.own_subnets:
        if value in subnet:
            return End(value, places.node, None, subnet, is_here=True, is_host=is_host)
    for peer in places.peers:  # also where this host has taken the address
        for each in peer.lease.subnets:
            if value in each.cidr:
                return End(value, peer.lease.node or peer.lease.name, peer, each.cidr)
    return End(value, places.node, is_here=True, is_host=True) if is_host else End(value)
