"""VXLAN: every peer is a neighbour, a forwarding entry and a route on one device (flannel's `vxlan`)."""

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

from flannelette.services.core.backend_types import VXLAN_DF, VxlanOptions
from flannelette.services.core.family import IPV4, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import BackendData, Lease, Subnet, VxlanData
from flannelette.services.dataplane.backends.backend import (
    Backend,
    NodeIdentity,
    NodeLinks,
    direct_route,
    mtu_warnings,
    require_room,
    tunnel_route,
)
from flannelette.services.dataplane.links.interfaces import Device, LinkEdit, LinkSpec
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, packed_mac
from flannelette.services.dataplane.underlay import Underlay

_IN_PLACE: Final[Mapping[str, Callable[[int], str]]] = {
    "learning": lambda on: "learning" if on else "nolearning",
    "ttl": lambda hops: f"ttl {hops or 'auto'}",
    "df": lambda number: f"df {VXLAN_DF[number]}",
}
"""Attributes that the kernel changes while the device is there, with iproute2's words for a value."""


@frozen
class VxlanLink:
    """A VXLAN device, as it is or should be."""

    vni: int
    port: int
    parent: int
    """ifindex of the underlay's interface."""
    local: str
    learning: bool = False
    gbp: bool = False
    group: str | None = None
    """The multicast group, or the one remote, that unknown destinations go to; none of ours has any."""
    ttl: int = 0
    """TTL of the outer packet; 0: that of the route, else the namespace's default."""
    df: int = 0
    """Don't Fragment of the outer packet: an index of VXLAN_DF."""
    kind: ClassVar[str] = "vxlan"
    instead: ClassVar[str] = "host-gw"
    offloads_checksums: ClassVar[bool] = True

    def encode(self) -> dict[str, Any]:
        """See LinkKind. `gbp` is a flag of netlink: it is there, or is not. The kernel learns unless it is told."""
        local = "local6" if ":" in self.local else "local"
        optional = {name: value for name in ("gbp", "ttl", "df") if (value := getattr(self, name))}
        return {
            "id": self.vni,
            "link": self.parent,
            local: self.local,
            "port": self.port,
            "learning": self.learning,
            **optional,
        }

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """See LinkKind."""
        return cls(
            vni=data.get("id") or 0,
            port=data.get("port") or 0,
            parent=data.get("link") or 0,
            local=data.get("local") or data.get("local6") or "",
            learning=bool(data.get("learning")),
            gbp="gbp" in data,
            group=data.get("group") or data.get("group6"),
            ttl=data.get("ttl") or 0,
            df=data.get("df") or 0,
        )

    def text(self, parent: str = "") -> str:
        """`id 1 local 10.99.0.11 dev eth0 dstport 8472 nolearning`."""
        dev = f" dev {parent}" if parent else ""
        words = [_IN_PLACE[name](value) for name in ("ttl", "df") if (value := getattr(self, name))]
        flags = (_IN_PLACE["learning"](self.learning), *["gbp"] * self.gbp, *words)
        return f"id {self.vni} local {self.local}{dev} dstport {self.port} {' '.join(flags)}"

    def edit(self, wanted: Self) -> LinkEdit | None:
        """Some attributes change in place, without a lost packet; by all others flannel, too, tells devices apart."""
        changes = {name: getattr(wanted, name) for name in _IN_PLACE if getattr(wanted, name) != getattr(self, name)}
        if replace(self, **changes) != wanted:
            return None
        return LinkEdit(" ".join(_IN_PLACE[name](value) for name, value in changes.items()), changes)

    def excludes(self, wanted: Self) -> bool:
        """One device a VNI and port; but one of each address family."""
        is_same_family = (":" in (self.local or self.group or "")) == (":" in wanted.local)
        return is_same_family and (self.vni, self.port) == (wanted.vni, wanted.port)

    def identity(self) -> str:
        """What the kernel looks a received packet's device up by."""
        return f"VNI {self.vni} and port {self.port}"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return name in (f"flannel.{self.vni}", f"flannel-v6.{self.vni}")


@dataclass(frozen=True)
class Vxlan(VxlanOptions, Backend):
    """A device for each family, and three objects for each peer."""

    lease_type: ClassVar[str] = "vxlan"
    link_kinds: ClassVar[tuple[type[VxlanLink], ...]] = (VxlanLink,)
    numbers_devices: ClassVar[bool] = True

    @property
    def carrier(self) -> str:
        """See Backend."""
        return f"UDP port {self.port}"

    @property
    def lease_mark(self) -> Hashable:
        """See Backend. flannel publishes 16 bits of a VNI."""
        return self.lease_type, self.vni & 0xFFFF

    @property
    def variant(self) -> str:
        """See Backend."""
        return f"VNI {self.vni}"

    @property
    def follows_routes(self) -> bool:
        """Whether what peers need depends on the connected addresses: with DirectRouting."""
        return self.direct_routing

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """`flannel.<VNI>`, or `flannel-v6.<VNI>`, with the MAC that the node's lease publishes.

        So no peer has to learn another. Without a lease a new device has the MAC that was published last, else one
        that is stable over restarts and reboots of the node. Raises InvalidInput where the underlay leaves the device
        less than IP needs.
        """
        name = f"flannel.{self.vni}" if family is IPV4 else f"flannel-v6.{self.vni}"
        mtu = require_room("VXLAN", self._device_mtu(family, underlay), family, underlay)
        published = _mac_in(identity.published, family)
        return LinkSpec(
            name=name,
            family=family,
            attributes=VxlanLink(
                self.vni,
                self.port,
                underlay.index,
                str(underlay.address(family)),
                self.learning,
                self.gbp,
                ttl=self.ttl,
                df=VXLAN_DF.index(self.df),
            ),
            parent=underlay.name,
            mtu=mtu,
            mac=published or _mac_in(identity.cached, family) or stable_mac(identity.node, name, identity.machine),
            is_mac_published=published != "",
            address=identity.address(family),
        )

    def mtu(self, underlay: Underlay) -> int:
        """Returns the MTU of the first family's device. In dual stack it is IPv4's, as with flannel: IPv6 finds its
        own out.
        """
        return self._device_mtu(family_of(underlay.addresses[0]), underlay)

    def _device_mtu(self, family: Family, underlay: Underlay) -> int:
        """Returns flanneld's MTU: it asks for 50 less than the option in both families, and the kernel grants what
        fits.
        """
        asked = (self.parent_mtu or underlay.mtu) - IPV4.vxlan_overhead
        return min(asked, underlay.mtu - family.vxlan_overhead)

    def warnings(self, underlay: Underlay) -> Sequence[str]:
        """The option MTU, where it is more than there is."""
        return mtu_warnings(self.parent_mtu, underlay)

    def lease_data(self, family: Family, device: Device | None) -> BackendData | None:
        """VNI and MAC of the tunnel end point."""
        return VxlanData(self.vni, device.mac) if device else None

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """A lease without a MAC, of another VNI, or without a public address."""
        if not isinstance(subnet.data, VxlanData):
            return "the lease has no VTEP MAC"
        if subnet.data.vni not in (self.vni, self.vni & 0xFFFF, 0):  # flannel publishes 16 bits of it, or none
            return f"the lease has VNI {subnet.data.vni}, this network {self.vni}"
        return super().rejection(subnet, links)

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """Neighbour `subnet.ip -> MAC`, FDB entry `MAC -> public address`, route `subnet via subnet.ip onlink`.

        The route leads to an address that only the neighbour entry knows; the forwarding entry says to which host the
        frame with that neighbour's MAC is sent. To a connected peer, with DirectRouting, the route `subnet via public
        address` is enough. Both routes have one key in the kernel, so that a peer changes from one to the other
        without a moment in between.
        """
        objects: list[KernelObject] = []
        for subnet in subnets:
            family, data, public = family_of(subnet.cidr), subnet.data, subnet.public_address
            if not isinstance(data, VxlanData) or public is None:
                continue
            if self.direct_routing and links.on_link.reaches(public):
                objects.append(direct_route(family, subnet.cidr, public, links))
                continue
            route, mac = tunnel_route(family, subnet.cidr, None, links), bytes.fromhex(data.mac.replace(":", ""))
            objects += (
                Neighbour(route.gateway, mac, family.af, route.ifindex),
                FdbEntry(mac, public.packed, route.ifindex),
                route,
            )
        return objects


def stable_mac(node: str, device: str, machine: str) -> str:
    """A locally administered unicast MAC (IEEE 802) that is a pure function of the node, the device and the machine's
    token. Who does not know that token cannot guess the MAC, and send frames to it; without a token anybody can.
    """
    of_machine = f" on {machine}" if machine else ""
    digest = hashlib.sha256(f"flannelette {device} of {node}{of_machine}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in bytes([digest[0] & 0xFE | 0x02]) + digest[1:6])


def _mac_in(lease: Lease | None, family: Family) -> str:
    """The MAC that a lease has in a family; empty: none, or one that no device can have."""
    subnet = lease.subnet(family) if lease else None
    if subnet is None or not isinstance(subnet.data, VxlanData):
        return ""
    mac = packed_mac(subnet.data.mac)
    return subnet.data.mac if mac is not None and any(mac) and not mac[0] & 1 else ""
