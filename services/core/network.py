"""flannel's network configuration: what it may say, what it means, and what we would rather see changed."""

from dataclasses import field

from flannelette.services.core.addresses import network_warning, parse_address, parse_cidr
from flannelette.services.core.backend_types import (
    BACKEND_TYPES,
    SECRETS,
    WHERE,
    BackendOptions,
    Tunnel,
    parse_options,
)
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import FAMILIES, IPV4, Address, Family, Network
from flannelette.services.core.formats.gojson import GoObject, without_secrets
from flannelette.services.core.frozen import frozen


@frozen
class FamilyNetwork:
    """The overlay in one address family, and the subnets that may be leased from it."""

    family: Family
    cidr: Network
    subnet_length: int = 0
    """Prefix length of a node's subnet; 0 where the store hands subnets out (Kubernetes)."""
    subnet_min: Address | None = None
    """First subnet that may be leased; None with `subnet_length` 0."""
    subnet_max: Address | None = None
    """Last subnet that may be leased, inclusive; None with `subnet_length` 0."""

    def fits(self, cidr: Network) -> bool:
        """Whether a lease of this subnet agrees with the configuration."""
        if self.subnet_min is None or self.subnet_max is None:
            return cidr.version == self.family.version and contains(self.cidr, cidr)
        return (
            cidr.version == self.family.version
            and cidr.prefixlen == self.subnet_length
            and int(self.subnet_min) <= int(cidr.network_address) <= int(self.subnet_max)
        )


@frozen
class NetworkConfig:
    """The configuration of a whole network, checked. Equal if its source and its meaning are."""

    families: tuple[FamilyNetwork, ...]
    """One per enabled family, IPv4 first; never empty."""
    backend_type: str
    """A key of BACKEND_TYPES."""
    options: BackendOptions = field(compare=False, repr=False)
    """The options that only this backend has."""
    enable_nftables: bool
    source: str = field(repr=False)
    """The original JSON text. May have keys and passwords."""
    warnings: tuple[str, ...] = ()
    beside: tuple[Network, ...] = ()
    """Where leases lie beside, as long as a change of the network is pending for their nodes: see `pending`."""
    imported: tuple[Network, ...] = ()
    """Where leases lie that are imported from other clusters."""
    no_masquerade: tuple[Network, ...] = ()
    """Where hosts have a route back to pods, so that these reach them under their own addresses."""
    revision: int = field(default=0, compare=False, repr=False)
    """When the store got it, in the order of `Lease.claim_order`; 0: it keeps none."""

    def family(self, family: Family) -> FamilyNetwork | None:
        """The overlay in one family, if that is enabled."""
        return next((n for n in self.families if n.family is family), None)

    @property
    def shown(self) -> str:
        """The JSON text without keys and passwords, for people."""
        return without_secrets(self.source, SECRETS)

    def cidrs(self, family: Family) -> tuple[Network, ...]:
        """Where leases lie in one family, the network itself first; none if it is not enabled."""
        enabled, others = self.family(family), (*self.beside, *self.imported)
        return (enabled.cidr, *(n for n in others if n.version == family.version)) if enabled else ()

    def tunnel(self, suffix: str = "") -> Tunnel | None:
        """How packets travel between nodes; None: as they are.

        `suffix` is behind the names of what the network has of its own on a host (`-blue`), devices among that.
        """
        return self.options.tunnel(suffix)


def contains(outer: Network, inner: Network) -> bool:
    """Whether `inner` lies in `outer`; networks of different families never do."""
    return (
        outer.version == inner.version
        and outer.prefixlen <= inner.prefixlen
        and int(outer.network_address) == int(inner.network_address) & int(outer.netmask)
    )


def parse_network(source: str, *, leases_subnets: bool = True) -> NetworkConfig:
    """Reads flannel's JSON. Raises InvalidInput, with what to write instead.

    With `leases_subnets` false (Kubernetes hands out the subnets) SubnetLen, SubnetMin and SubnetMax are not
    looked at, as in flannel. Follows flannel's code where its documentation differs: `Backend` missing is udp.
    """
    document = GoObject.parse(source, WHERE)
    enabled = {4: document.flag("EnableIPv4", True), 6: document.flag("EnableIPv6", False)}
    families = tuple(
        _family_network(family, document, leases_subnets) for family in FAMILIES if enabled[family.version]
    )
    if not families:
        raise InvalidInput(f"{WHERE} enables neither IPv4 nor IPv6: set EnableIPv4 or EnableIPv6 to true")
    backend_type, given, warnings = _backend(document)
    families, left_out = _carried(families, backend_type)
    warnings += left_out
    warnings += [warning for row in families if (warning := network_warning(row.cidr))]
    options, told = parse_options(backend_type, given, tuple(n.family for n in families))
    warnings += told
    return NetworkConfig(
        families,
        backend_type,
        options,
        document.flag("EnableNFTables"),
        source,
        tuple(warnings),
        no_masquerade=tuple(map(_unmasked, document.texts("NoMasquerade"))),
    )


def _unmasked(text: str) -> Network:
    network = parse_cidr(text)
    if network is None:
        raise InvalidInput(f'NoMasquerade {text!r} in {WHERE} is no network: write for instance ["10.0.0.0/8"]')
    return network


def _backend(document: GoObject) -> tuple[str, GoObject, list[str]]:
    options = document.object("Backend")
    if options is None:
        warning = (
            'Backend is missing, which means {"Type":"udp"} (flannel\'s code; its documentation says vxlan): '
            "write the type you want"
        )
        return "udp", GoObject.parse("{}", f"Backend in {WHERE}"), [warning]
    name = options.text("Type").lower()
    if not name:
        raise InvalidInput(f'Backend in {WHERE} has no Type: write for instance {{"Type":"vxlan"}}')
    if name not in BACKEND_TYPES:
        names = ", ".join(sorted(BACKEND_TYPES))
        raise InvalidInput(f"Type {name!r} of Backend in {WHERE} does not exist: write one of {names}")
    return name, options, []


def _carried(families: tuple[FamilyNetwork, ...], backend_type: str) -> tuple[tuple[FamilyNetwork, ...], list[str]]:
    """The families that the backend carries, and a warning for those that it does not. Raises InvalidInput."""
    if BACKEND_TYPES[backend_type].carries_ipv6 or all(n.family is IPV4 for n in families):
        return families, []
    if families[0].family is not IPV4:
        raise InvalidInput(
            f"backend {backend_type} carries IPv4 only, and {WHERE} enables IPv6 only: enable IPv4, or use vxlan"
        )
    warning = f"backend {backend_type} carries IPv4 only: the network's IPv6 is left out; use vxlan to have both"
    return tuple(n for n in families if n.family is IPV4), [warning]


def _family_network(family: Family, document: GoObject, leases_subnets: bool) -> FamilyNetwork:
    key = f"{family.key_prefix}Network"
    cidr = _parse_cidr(family, key, document.text(key))
    if not leases_subnets:
        return FamilyNetwork(family, cidr)
    if cidr.prefixlen > family.bits - 4:
        raise InvalidInput(f"{key} {cidr} is too small for four subnets: write /{family.bits - 4} or larger")
    length = _subnet_length(family, cidr, document)
    size = 1 << (family.bits - length)
    subnet_min = _boundary(family, "SubnetMin", document, cidr.network_address + size, cidr, size)
    subnet_max = _boundary(family, "SubnetMax", document, cidr.broadcast_address - (size - 1), cidr, size)
    if int(subnet_min) > int(subnet_max):
        prefix = family.key_prefix
        raise InvalidInput(f"{prefix}SubnetMin {subnet_min} lies behind {prefix}SubnetMax {subnet_max}: swap them")
    return FamilyNetwork(family, cidr, length, subnet_min, subnet_max)


def _subnet_length(family: Family, cidr: Network, document: GoObject) -> int:
    key = f"{family.key_prefix}SubnetLen"
    longest, shortest = family.bits - 2, cidr.prefixlen + 2
    default = max(family.default_subnet_length, shortest)
    # Go leaves 0 in an absent number, so flannel takes a written 0 for absent too.
    length = document.number(key, most=2**32 - 1) or default
    if not shortest <= length <= longest:
        raise InvalidInput(f"{key} {length} does not suit the network {cidr}: use {shortest} to {longest}")
    return length


def _boundary(family: Family, name: str, document: GoObject, default: Address, cidr: Network, size: int) -> Address:
    key = family.key_prefix + name
    if not document.has(key):
        return default
    text = document.text(key)
    address = parse_address(text)
    if address is None or address.version != family.version:
        raise InvalidInput(f"{key} {text!r} is not an {family} address: write for instance {default}")
    if address.is_unspecified:
        return default  # as with SubnetLen: Go leaves 0 in an absent address
    if address not in cidr:
        raise InvalidInput(f"{key} {address} lies outside the network {cidr}: write for instance {default}")
    if int(address) % size:
        raise InvalidInput(f"{key} {address} is not the start of a subnet: write {address - int(address) % size}")
    return address


def _parse_cidr(family: Family, key: str, text: str) -> Network:
    example = "10.5.0.0/16" if family is IPV4 else "fd00:10:5::/48"
    if not text:
        raise InvalidInput(
            f'{WHERE} has no {key}: write for instance "{key}": "{example}", or "Enable{family}": false'
        )
    network = parse_cidr(text)
    if network is None or network.version != family.version:
        raise InvalidInput(f"{key} {text!r} is not an {family} network: write for instance {example}")
    if network.prefixlen == 0:
        raise InvalidInput(f"{key} {network} holds every address there is: write for instance {example}")
    return network
