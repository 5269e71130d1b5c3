"""extension: what carries the packets is made by commands of the network configuration (flannel's `extension`)."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from flannelette.services.core.backend_types import ExtensionOptions, declared_options
from flannelette.services.core.family import FAMILIES, IPV4, Address, Family, Network, family_of
from flannelette.services.core.formats.shell_words import split_words
from flannelette.services.core.leases.lease import BackendData, OpaqueData, Subnet
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends.backend import Backend, NodeLinks, Programs
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.objects import Hook, KernelObject

_SUBNETS: Final = {4: "SUBNET", 6: "IPV6SUBNET"}
_ADDRESSES: Final = {4: "PUBLIC_IP", 6: "PUBLIC_IPV6"}


@dataclass(frozen=True)
class Extension(ExtensionOptions, Backend):
    """The backend extension: no device, and the MTU of the underlay; each peer is a hook, and so is this node.

    What a lease says gets to a command by the environment and the standard input only, never as words.
    """

    network: str = ""
    """The IPv4 network as a CIDR; empty: there is none."""
    data: OpaqueData | None = None
    """The output of PreStartupCommand as a JSON string; None: there is no such command."""
    data_family: Family = IPV4
    """The one in which the lease publishes the data."""
    lease_type: ClassVar[str] = "extension"
    needs_own_subnet: ClassVar[bool] = True
    ignores_public_ip: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, each in declared_options(ExtensionOptions).items():
            split_words(getattr(self, name), each.name)

    async def prepare(self, network: NetworkConfig, programs: Programs | None) -> Self:
        """Runs PreStartupCommand. Raises InvalidInput where no command may be run, Unavailable until it has ended."""
        if programs is None or not any(getattr(self, name) for name in declared_options(ExtensionOptions)):
            return self
        programs.require_permission(self.lease_type)
        command, ipv4 = self.pre_startup, network.family(IPV4)
        data = OpaqueData(json.dumps(await programs.output(command), ensure_ascii=False)) if command else None
        first = network.families[0].family
        return replace(self, network=str(ipv4.cidr) if ipv4 else "", data=data, data_family=first)

    def lease_data(self, family: Family, device: Device | None) -> BackendData | None:
        """The output of PreStartupCommand."""
        return self.data if family is self.data_family else None

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """A lease without a public address, or with backend data that are no string."""
        if subnet.public_address is None:
            return f"the lease has no public {family_of(subnet.cidr)} address"
        return "" if _text(subnet) is not None else "the lease's BackendData is not a string"

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """One hook for all subnets of a peer, named by the first."""
        told = _environment(
            {s.cidr.version: s.cidr for s in subnets},
            {s.cidr.version: s.public_address for s in subnets if s.public_address},
        )
        data = next(filter(None, map(_text, subnets)), "")
        return [Hook(str(subnets[0].cidr), self.subnet_add, self.subnet_remove, told, data)]

    def node_objects(self, own_subnets: Sequence[Network], links: NodeLinks) -> Iterable[KernelObject]:
        """The hook of the node: PostStartupCommand and ShutdownCommand."""
        if not (own_subnets and (self.post_startup or self.shutdown)):
            return ()
        told = _environment(
            {cidr.version: cidr for cidr in own_subnets},
            {address.version: address for address in links.underlay.public_addresses},
        )
        return [Hook("", self.post_startup, self.shutdown, (("NETWORK", self.network), *told))]


def _environment(subnets: Mapping[int, Network], addresses: Mapping[int, Address]) -> tuple[tuple[str, str], ...]:
    """flannel's variables; those of a family that there is not are empty."""
    return tuple(
        (names[family.version], str(values.get(family.version, "")))
        for family in FAMILIES
        for names, values in ((_SUBNETS, subnets), (_ADDRESSES, addresses))
    )


def _text(subnet: Subnet) -> str | None:
    """What a peer's PreStartupCommand has printed; empty: it has none. None: the data are no string."""
    if not isinstance(subnet.data, OpaqueData):
        return "" if subnet.data is None else None
    try:
        found = json.loads(subnet.data.json)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, str) else None
