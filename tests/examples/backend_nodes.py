"""Node n1 of a network with some backend: its configuration and the host go in, devices and objects come out as text.

node = BackendNode("vxlan", '"VNI": 7')           # as "Backend" has it in the configuration
node.creates()                                     # the commands that make its devices
node.objects(peer("10.5.53.0/24", "10.99.0.12"))   # what carries a peer, in iproute2's words
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import FAMILIES, Family
from flannelette.services.core.leases.lease import BackendData, Lease, Subnet, WireguardData, lease_key
from flannelette.services.core.network import parse_network
from flannelette.services.dataplane.backends import make_backend
from flannelette.services.dataplane.backends.backend import NodeFiles, NodeIdentity, NodeLinks
from flannelette.services.dataplane.links.interfaces import Device, LinkSpec, as_created, as_device, link_changes
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.peers import PeerContext, peer_of
from flannelette.services.dataplane.probes.record import Layer, paths_of
from flannelette.services.dataplane.underlay import connected_routes
from tests.examples.dataplane import DUAL_UNDERLAY, ETH0, UNDERLAY, route, subnet

OWN = {4: subnet("10.5.27.0/24", "10.99.0.11"), 6: subnet("fd00:10:5:1b::/64", "fd00:99::11")}


def peer(cidr: str, public: str = "", mac: str = "", vni: int = 1) -> Subnet:
    """A subnet of another node, with a VTEP's MAC or without data."""
    return subnet(cidr, public, mac, vni)


def wireguard_peer(cidr: str, public: str, key: str, port: int = 51820) -> Subnet:
    return replace(subnet(cidr, public), data=WireguardData(key, port))


class BackendNode:
    """The node. Raises InvalidInput or Misconfigured where the configuration or the host is refused."""

    def __init__(
        self,
        kind: str,
        options: str = "",
        *,
        families: Sequence[int] = (4,),
        mtu: int = 1500,
        public: Sequence[str] = (),
        near: str = "",
        directory: Path | None = None,
        suffix: str = "",
    ) -> None:
        """`public`: what peers are told instead of the host's addresses; `near`: a network that eth0 is connected to.

        `directory` has the node's files; `suffix` is that of a network with a name.
        """
        v6 = ',"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"' if 6 in families else ""
        more = f",{options}" if options else ""
        self.network = parse_network(f'{{"Network":"10.5.0.0/16"{v6},"Backend":{{"Type":"{kind}"{more}}}}}')
        self.backend: Any = make_backend(self.network)
        if directory is not None:
            self.backend = self.backend.on_node(NodeFiles(directory / f"wgkey{suffix}", suffix=suffix))
        host = DUAL_UNDERLAY if 6 in families else UNDERLAY
        self.underlay = replace(host, mtu=mtu, public_addresses=tuple(map(ip_address, public)) or host.addresses)
        own = [OWN[version] for version in families]
        identity = NodeIdentity("n1", Lease(lease_key(part.cidr for part in own), "n1", tuple(own), kind))
        families_of = [family for family in FAMILIES if family.version in families]
        found = {family: self.backend.link(family, self.underlay, identity) for family in families_of}
        self.specs: Mapping[Family, LinkSpec] = {
            network.family: replace(spec, network=network.cidr, address=_address(OWN[network.family.version]))
            for network in self.network.families
            if (spec := found[network.family]) is not None
        }
        names = list(dict.fromkeys(spec.name for spec in self.specs.values()))
        self.devices = {family: self._device(spec, 3 + names.index(spec.name)) for family, spec in self.specs.items()}
        on_link = connected_routes([route(f"{near} dev eth0")], ETH0) if near else NodeLinks(host, {}, 77).on_link
        networks = tuple(each.cidr for each in self.network.families)
        self.links = NodeLinks(self.underlay, self.devices, 77, on_link=on_link, networks=networks)

    @property
    def mtu(self) -> int:
        """Of pods."""
        return int(self.backend.mtu(self.underlay))

    @property
    def mtus(self) -> list[int]:
        """Of the devices, IPv4 first."""
        return [spec.mtu for spec in self.specs.values()]

    @property
    def warnings(self) -> list[str]:
        return list(self.backend.warnings(self.underlay))

    @property
    def publishes(self) -> list[BackendData | None]:
        """What its lease says in each family."""
        families = [network.family for network in self.network.families]
        return [self.backend.lease_data(family, self.devices.get(family)) for family in families]

    def creates(self) -> list[str]:
        """The commands on a host that has nothing yet."""
        made = ((spec, as_created(spec)) for spec in self.specs.values())
        return [
            each.command for spec, link in made for each in (*link_changes(None, spec), *link_changes(link, spec))
        ]

    def changes(self, data: Mapping[str, Any] | None = None, **found: Any) -> list[str]:
        """The commands where its first device is there and up, but for what is `found`; `data` is of its kind."""
        spec = next(iter(self.specs.values()))
        link = replace(as_created(spec), index=3, up=True, addresses=(spec.address,) if spec.address else ())
        link = replace(link, **found, data={**link.data, **data} if data is not None else link.data)
        return [each.command for each in link_changes(link, spec)]

    def describes(self) -> list[str]:
        """Its devices as status shows them."""
        return [each.description for each in self.devices.values()]

    def reason(self, *parts: Subnet) -> str:
        """Why the first of the subnets is not carried that is not; empty: all are."""
        return next(filter(None, (self.backend.rejection(part, self.links) for part in parts)), "")

    def objects(self, *parts: Subnet) -> list[str]:
        """What carries a peer with these subnets, sorted as the kernel takes it."""
        return self._lines(self.backend.peer_objects(parts, (), self.links))

    def slots(self, *parts: Subnet) -> set[object]:
        """The places in the kernel of these objects, of which each can be taken once."""
        return {item.key for item in self.backend.peer_objects(parts, (), self.links)}

    def own_objects(self) -> list[str]:
        """What it needs independent of peers."""
        return self._lines(self.backend.node_objects((), self.links))

    def peer(self, part: Subnet, kind: str) -> tuple[list[str], str, list[str]]:
        """A lease of this type: its objects, why it is refused or ignored, and where it is asked whether it answers.

        An asked address that must answer ends with `!`.
        """
        situation = PeerContext(self.network, self.backend, self.links)
        found = peer_of(Lease(lease_key([part.cidr]), "n2", (part,), kind), situation)
        asked = [
            f"{'overlay' if path.layer is Layer.OVERLAY else 'underlay'} {path.address}{'!' * path.must_answer}"
            for path in paths_of(found, situation)
        ]
        return self._lines(found.objects), found.reason or found.ignored, asked

    def _lines(self, objects: Iterable[KernelObject]) -> list[str]:
        return [text(item, self.links.names()) for item in sorted(objects)]

    @staticmethod
    def _device(spec: LinkSpec, index: int) -> Device:
        return as_device(replace(as_created(spec), index=index), spec)


def _address(part: Subnet) -> Any:
    return ip_interface((part.cidr.network_address, part.cidr.max_prefixlen))


def refusal(kind: str, options: str, *, families: Sequence[int] = (4,)) -> str:
    """Why a network with these options of the backend is refused; empty: it is not."""
    try:
        BackendNode(kind, options, families=families)
    except InvalidInput as error:
        return str(error)
    return ""
