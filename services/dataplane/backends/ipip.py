"""IPIP: every peer is a route through its public address, on one tunnel device (flannel's `ipip`). IPv4 only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from flannelette.services.core.backend_types import IPIP_DEVICE, IpipOptions
from flannelette.services.core.family import IPV4, Address, Family, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.dataplane.backends.backend import (
    Backend,
    NodeIdentity,
    NodeLinks,
    direct_route,
    require_room,
    tunnel_route,
)
from flannelette.services.dataplane.links.interfaces import LinkEdit, LinkSpec
from flannelette.services.dataplane.netlink.objects import KernelObject, Route
from flannelette.services.dataplane.underlay import Underlay

_OVERHEAD: Final = 20
"""Bytes: the outer IPv4 header (RFC 2003)."""
_ANY: Final = "0.0.0.0"  # noqa: S104 - an address of a tunnel, to which nothing is bound


@frozen
class IpipLink:
    """An IPIP device: to any remote address, with the inner packet's TTL, TOS and Don't Fragment."""

    local: str
    remote: str = _ANY
    ttl: int = 0
    """TTL of the outer packet; 0: inherited from the inner one."""
    pmtudisc: bool = False
    """The outer packet is never fragmented, whatever the inner one says: iproute2's default, and not flannel's."""
    encap_type: int = 0
    """FOU or GUE around it; 0: none."""
    encap_flags: int = 0
    encap_sport: int = 0
    encap_dport: int = 0
    kind: ClassVar[str] = "ipip"
    instead: ClassVar[str] = "vxlan"
    offloads_checksums: ClassVar[bool] = False

    def encode(self) -> dict[str, Any]:
        """All attributes: the kernel takes an absent one for 0, and an absent pmtudisc for set.

        `proto` 0 (`ipip any`) is flannel's; no change of a link changes it, so `decode` does not compare it.
        """
        return {
            "proto": 0,
            "local": self.local,
            "remote": self.remote,
            "ttl": self.ttl,
            "pmtudisc": int(self.pmtudisc),
            "encap_type": self.encap_type,
        }

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """See LinkKind."""
        return cls(
            data.get("local") or _ANY,
            data.get("remote") or _ANY,
            data.get("ttl") or 0,
            bool(data.get("pmtudisc")),
            *(data.get(f"encap_{name}") or 0 for name in ("type", "flags", "sport", "dport")),
        )

    def text(self, parent: str = "") -> str:
        """`local 10.99.0.11 ttl inherit nopmtudisc`."""
        remote = "" if self.remote == _ANY else f"remote {self.remote} "
        encap = f" encap {self.encap_type}" if self.encap_type else ""
        return (
            f"{remote}local {self.local} ttl {self.ttl or 'inherit'} {'' if self.pmtudisc else 'no'}pmtudisc{encap}"
        )

    def edit(self, wanted: Self) -> LinkEdit | None:
        """Returns the edit of the device, which can be changed in place, so that routes stay; None if it has a remote
        address: that is another program's.
        """
        if self.remote != wanted.remote:
            return None
        return LinkEdit() if self == wanted else LinkEdit(wanted.text(), wanted.encode())

    def excludes(self, wanted: Self) -> bool:
        """One device a pair of addresses."""
        return (self.local, self.remote) == (wanted.local, wanted.remote)

    def identity(self) -> str:
        """What the kernel looks tunnels up by."""
        return f"local address {self.local}"

    def is_named(self, name: str) -> bool:
        """Never `tunl0`, which the kernel makes in every namespace, and which has no local address."""
        return name == IPIP_DEVICE and self.local != _ANY


@dataclass(frozen=True)
class Ipip(IpipOptions, Backend):
    """One tunnel device, and a route to each peer's subnet."""

    lease_type: ClassVar[str] = "ipip"
    link_kinds: ClassVar[tuple[type[IpipLink], ...]] = (IpipLink,)
    numbers_devices: ClassVar[bool] = True

    @property
    def carrier(self) -> str:
        """See Backend."""
        return "IP protocol 4 (IPIP)"

    @property
    def follows_routes(self) -> bool:
        """Whether what peers need depends on the connected addresses: with DirectRouting."""
        return self.direct_routing

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """`flannel.ipip`. Raises InvalidInput where the underlay leaves it less than IPv4 needs."""
        return LinkSpec(
            name=IPIP_DEVICE,
            family=family,
            attributes=IpipLink(str(underlay.address(family))),
            parent=underlay.name,
            mtu=require_room("IPIP", self.mtu(underlay), family, underlay),
            address=identity.address(family),
        )

    def mtu(self, underlay: Underlay) -> int:
        """The underlay's without the outer header."""
        return underlay.mtu - _OVERHEAD

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """`subnet via PublicIP dev flannel.ipip onlink`: the gateway is where the outer packet goes to.

        To a connected peer, with DirectRouting: `subnet via PublicIP dev <underlay> onlink`, as flannel has it. Both
        have one key in the kernel, so that a peer changes from one to the other without a moment in between.
        """
        return [self._route(subnet.cidr, subnet.public_address, links) for subnet in subnets if subnet.public_address]

    def _route(self, cidr: Network, address: Address, links: NodeLinks) -> Route:
        if self.direct_routing and links.on_link.reaches(address):
            return direct_route(IPV4, cidr, address, links, onlink=True)
        return tunnel_route(IPV4, cidr, address, links)
