"""Keeps networks of one network namespace apart: what this one claims of it, and which devices are not its own."""

from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_network

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import Network
from flannelette.services.core.network import NetworkConfig, contains
from flannelette.services.core.tunnel import UDP
from flannelette.services.dataplane.links import actual as links
from flannelette.services.dataplane.links.desired import Device, LinkSpec
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.settings import ROUTE_PROTOCOL, DataplaneSettings
from flannelette.services.runtime.os.claims import DEVICE, MARK, RANGE, UDP_PORT, Claims, NameClaim
from flannelette.services.runtime.process.networks import NAMED_PROTOCOLS


async def claim(
    network: NetworkConfig,
    specs: Sequence[LinkSpec],
    settings: DataplaneSettings,
    kernel: Actuator,
    claims: Claims | None,
    former: Collection[Network],
) -> None:
    """Claims what a configuration needs, with these devices. `former` are subnets that are or were the node's own.

    Raises InvalidInput, naming both networks, where another one of the namespace is in its way; Unavailable.
    """
    ranges = [cidr for row in network.families for cidr in network.cidrs(row.family)]
    wanted = [NameClaim(MARK, str(settings.route_protocol)), *(NameClaim(RANGE, str(cidr)) for cidr in ranges)]
    wanted += [NameClaim(DEVICE, f"{spec.name} ({spec.attributes.identity()})") for spec in specs]
    tunnel = network.tunnel()
    if tunnel is not None and tunnel.protocol == UDP:
        ports = dict.fromkeys(tunnel.port_of(row.family.version) for row in network.families)
        wanted += [NameClaim(UDP_PORT, f"{port} {network.backend_type}") for port in ports]
    if claims is not None:
        claims.check(wanted)
    if settings.is_named and network.backend_type == "ipsec":
        raise InvalidInput(
            "backend ipsec is for the network without a name: charon and the kernel's policies are one for all"
        )
    if settings.network:  # what other networks have without a claim: of a process that has ended, or before a restart
        for spec in specs:
            await _require_own_device(spec, [*former, *ranges])
        for row in network.families:
            _require_own_routes(await kernel.routes(row.family.af), ranges, settings.route_protocol)
    if claims is not None:
        claims.take(wanted)


def keep_claims(devices: Iterable[Device], claims: Claims | None) -> None:
    """Gives back the claims of all devices but these."""
    if claims is not None:
        claims.keep_devices({device.name for device in devices})


def unclaimed(names: Iterable[str], claims: Claims | None) -> frozenset[str]:
    """Selects from these devices those that no other network has now, whoever made them."""
    return frozenset(names) - (claims.of_others(DEVICE) if claims else frozenset())


async def _require_own_device(spec: LinkSpec, ranges: Collection[Network]) -> None:
    """Raises InvalidInput for a device that is there with an address outside of these ranges."""
    link = await links.find_link(spec.name)
    for address in link.addresses if link else ():
        if not address.ip.is_link_local and not any(contains(cidr, address.network) for cidr in ranges):
            raise InvalidInput(
                f"{spec.name} ({spec.attributes.identity()}) has {address}, so it is of another network on this "
                "host: give this one another device (with vxlan: another VNI), or remove the other with "
                f"`ip link del {spec.name}`"
            )


def _require_own_routes(routes: Iterable[Route], ranges: Collection[Network], protocol: int) -> None:
    """Raises InvalidInput for a route into these ranges that has the mark of another network."""
    others = {ROUTE_PROTOCOL, *NAMED_PROTOCOLS} - {protocol}
    for route in routes:
        to = ip_network((route.dst, route.length)) if route.protocol in others else None
        if to is not None and any(contains(cidr, to) for cidr in ranges):
            raise InvalidInput(
                f"the route to {to} has protocol {route.protocol}, so it is of another network on this host: change "
                f"the range of one of them, or remove it with `ip route flush proto {route.protocol}`"
            )
