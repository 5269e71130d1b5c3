"""IPsec: ESP tunnels between nodes, negotiated by strongSwan's charon (flannel's `ipsec`). IPv4 only.

The kernel encrypts what its xfrm policies select, which are ours. charon, a process of its own, authenticates the
nodes by a key that all have, and gives the kernel the tunnels' keys.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import ClassVar, Final, Self

from flannelette.services.core.backend_types import IPSEC_DEVICE, IpsecOptions
from flannelette.services.core.family import IPV4, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.dataplane.backends.backend import (
    Backend,
    Host,
    NodeFiles,
    NodeIdentity,
    NodeLinks,
    direct_route,
    require_room,
)
from flannelette.services.dataplane.ike import follow_charon
from flannelette.services.dataplane.links.interfaces import BareLink, LinkSpec
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.objects import (
    ALLOW_PRIORITY,
    BLOCK,
    BLOCK_PRIORITY,
    DIR_FWD,
    DIR_IN,
    DIR_OUT,
    REQID,
    TUNNEL_PRIORITY,
    IkeConnection,
    IkeKey,
    KernelObject,
    XfrmPolicy,
)
from flannelette.services.dataplane.underlay import Underlay

_OVERHEAD: Final = 77
"""Bytes that flannel takes off; the largest packet that fits is 23 bytes larger."""
_UDP_OVERHEAD: Final = 8


@frozen
class DummyLink(BareLink):
    """A dummy device, for the address from which the node itself sends to pods. No packet passes it."""

    kind: ClassVar[str] = "dummy"
    instead: ClassVar[str] = "wireguard"

    def excludes(self, wanted: Self) -> bool:
        """Many may be there."""
        return False

    def identity(self) -> str:
        """None may not be shared."""
        return "nothing"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return name == IPSEC_DEVICE


@dataclass(frozen=True)
class Ipsec(IpsecOptions, Backend):
    """Policies, and connections of charon."""

    charon: Path = NodeFiles().charon_socket
    lease_type: ClassVar[str] = "ipsec"
    link_kinds: ClassVar[tuple[type[DummyLink], ...]] = (DummyLink,)
    follows_own_subnets: ClassVar[bool] = True
    needs_own_subnet: ClassVar[bool] = True
    has_policies: ClassVar[bool] = True

    @property
    def carrier(self) -> str:
        """See Backend."""
        return "ESP, and UDP ports 500 and 4500 of IKE"

    def on_node(self, files: NodeFiles) -> Self:
        """Returns the backend with the socket of this node's charon."""
        return replace(self, charon=files.charon_socket)

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """`flannel.ipsec`. Raises InvalidInput where the underlay leaves packets less than IPv4 needs."""
        mtu = require_room("IPsec", self.mtu(underlay), family, underlay)
        return LinkSpec(IPSEC_DEVICE, family, DummyLink(), underlay.name, mtu, address=identity.address(family))

    def mtu(self, underlay: Underlay) -> int:
        """Returns flannel's MTU: the underlay's without the overhead of ESP, and of UDP if that encapsulates it."""
        return underlay.mtu - _OVERHEAD - (_UDP_OVERHEAD if self.encap else 0)

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """Policies own subnet → peer's and back, charon's connection, and a route with an own address as its source.

        Without that source, what the node itself sends to a pod would have an address that no policy knows, and
        leave in clear.
        """
        own, here = _of_ipv4(own_subnets), links.underlay.address(IPV4)
        if own is None or here is None:
            return []
        identity = links.underlay.public_address(IPV4) or here
        objects: list[KernelObject] = []
        for subnet in subnets:
            there = subnet.public_address
            if there is None:
                continue
            away = _tunnel(_policy(DIR_OUT, own, subnet.cidr), here.packed, there.packed)
            back = _tunnel(_policy(DIR_IN, subnet.cidr, own), there.packed, here.packed)
            back = back._replace(is_optional=links.is_changing)
            names = (str(here), str(identity), str(own), str(there), str(subnet.cidr))
            objects += (
                away,
                back,
                back._replace(direction=DIR_FWD),
                IkeKey(str(there), self.psk),
                IkeConnection(*names, self.encap, self.proposal),
                direct_route(family_of(subnet.cidr), subnet.cidr, there, links, onlink=True)._replace(
                    rest=uapi.attribute(uapi.RTA_PREFSRC, own.network_address.packed)
                ),
            )
        return objects

    def node_objects(self, own_subnets: Sequence[Network], links: NodeLinks) -> Iterable[KernelObject]:
        """The node's own key, and policies by which packets of pods to and from a subnet without a peer are dropped.

        No such policies where the network covers the underlay, as pods could not reach the nodes, and while another
        backend carries packets to some peers.
        """
        own, here = _of_ipv4(own_subnets), links.underlay.address(IPV4)
        if own is None or here is None:
            return []
        objects: list[KernelObject] = [IkeKey(str(links.underlay.public_address(IPV4) or here), self.psk)]
        places = [*links.underlay.networks, *map(ip_network, links.underlay.addresses)]
        for network in () if links.is_changing else links.networks:
            if any(network.version == place.version and network.overlaps(place) for place in places):
                continue
            inner = [_policy(direction, own, own) for direction in (DIR_IN, DIR_OUT, DIR_FWD)]
            outer = (
                _policy(DIR_OUT, own, network),
                _policy(DIR_IN, network, own),
                _policy(DIR_FWD, network, own),
            )
            objects += (each._replace(priority=ALLOW_PRIORITY) for each in inner)
            objects += (each._replace(priority=BLOCK_PRIORITY, action=BLOCK) for each in outer)
        return objects

    async def run(self, host: Host) -> None:
        """Follows charon: says when it is away, and has everything compared when it is back."""
        await follow_charon(self.charon, host.report, host.audit, host.connected)


def _of_ipv4(subnets: Sequence[Network]) -> Network | None:
    return next((subnet for subnet in subnets if subnet.version == IPV4.version), None)


def _policy(direction: int, src: Network, dst: Network) -> XfrmPolicy:
    ends = (src.network_address.packed, src.prefixlen, dst.network_address.packed, dst.prefixlen)
    return XfrmPolicy(direction, *ends)


def _tunnel(policy: XfrmPolicy, src: bytes, dst: bytes) -> XfrmPolicy:
    return policy._replace(priority=TUNNEL_PRIORITY, tunnel_src=src, tunnel_dst=dst, reqid=REQID)
