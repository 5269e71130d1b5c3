"""The network configuration of this node: which one is in force while a change would take away the node's own subnet,
and what it claims beside other networks of one network namespace.
"""

from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_network
from typing import Protocol

from flannelette.services.core.backend_types import UDP
from flannelette.services.core.errors import FlanneletteError, InvalidInput
from flannelette.services.core.family import FAMILIES, Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.network_moves import PendingMove, hands_out, in_force, pending_move
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig, contains
from flannelette.services.dataplane.events import metrics
from flannelette.services.dataplane.events.journal import Event, NodeEventKind, NodeJournal
from flannelette.services.dataplane.links import actual as links
from flannelette.services.dataplane.links.desired import Device, LinkSpec
from flannelette.services.dataplane.links.interfaces import Interface
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.settings import ROUTE_PROTOCOL, DataplaneSettings
from flannelette.services.runtime.networks import NAMED_PROTOCOLS
from flannelette.services.runtime.os.names import DEVICE, MARK, RANGE, UDP_PORT, Claims, NameClaim
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


class ReleaseCall(Protocol):
    """What a change needs of a lease service."""

    async def release(self, name: str) -> None: ...  # noqa: D102 - see LeaseConnection


class NetworkChange:
    """The change that is pending for this node, and the configuration in force meanwhile (ADR 25).

    `before` is the configuration that an earlier process went by.
    """

    def __init__(
        self,
        node: str,
        connection: ReleaseCall,
        kernel: Actuator,
        journal: NodeJournal,
        route_protocol: int,
        before: NetworkConfig | None = None,
    ) -> None:
        self.move: PendingMove | None = None
        """The move that waits for an operator; None: there is none."""
        self._node = node
        self._connection = connection
        self._kernel = kernel
        self._journal = journal
        self._route_protocol = route_protocol
        self._before = before
        self._has_begun = False
        """A lease service has told its leases to this process: from now on nothing moves by itself."""
        self._released = ""
        """The lease that was given back because there were no pods, while the table still has it."""

    async def network(self, table: Table, held: Lease | None, *, is_told: bool) -> NetworkConfig:
        """The configuration in force from now on. `held` is the lease that we hold, as far as we know."""
        told = table.network
        assert told is not None  # noqa: S101 - a table is in force from its first network on
        own = self._own(table, held)
        if is_told and not self._has_begun:
            self._has_begun = True
            if own is not None and await self._moves_at_once(own, told):
                self._released, own = own.name, None
        self._note(pending_move(own, told) if own else None)
        self._before = in_force(told, own.cidrs if own else (), self._before)
        return self._before

    def _own(self, table: Table, held: Lease | None) -> Lease | None:
        """The lease that the table says is ours."""
        if self._released not in table.leases:
            self._released = ""  # if it is there later, an undone change has brought it back
        listed = table.leases.get(held.name) if held else None
        if listed is None or listed.node != self._node:
            ours = (lease for lease in table.leases.values() if lease.node == self._node and not lease.is_idle)
            listed = next(ours, None)
        return listed if listed is None or listed.name != self._released else None

    async def _moves_at_once(self, own: Lease, told: NetworkConfig) -> bool:
        """Whether, at a start, the pending change could be carried out because there are no pods; then
        it has begun.
        """
        move = pending_move(own, told)
        if move is None or not hands_out(told):
            return False
        try:
            routes = [route for family in FAMILIES for route in await self._kernel.routes(family.af)]
            strangers = [route for route in routes if route.protocol != self._route_protocol]
            if has_pods(own.cidrs, await links.interfaces(), strangers):
                return False
            await self._connection.release(own.name)
        except FlanneletteError as error:
            log.warning("a network change stays pending", lease=own.name, reason=str(error))
            return False
        log.warning("this node has no pods, so it moves to another subnet", lease=own.name, to=move.where)
        self._journal.note(Event(NodeEventKind.NETWORK, f"no pods here: the lease {own.name} is released", str(move)))
        return True

    def _note(self, move: PendingMove | None) -> None:
        if move == self.move:
            return
        self.move = move
        metrics.PENDING.set(1 if move else 0)
        if move is not None:
            log.warning(str(move), lease=move.lease)
            self._journal.note(Event(NodeEventKind.NETWORK, str(move), "lease service"))
        else:
            log.info("no network change is pending")
            self._journal.note(Event(NodeEventKind.NETWORK, "no network change is pending", "lease service"))


def has_pods(own: Iterable[Network], interfaces: Iterable[Interface], routes: Iterable[Route]) -> bool:
    """Whether pods of these subnets may be on this host: an interface has an address of one, or a route leads there.

    The first address of a subnet is that of the overlay's own device. `routes` are those that are not ours.
    """
    there = [address.ip for interface in interfaces for address in interface.addresses]
    used = {ip_network(ip) for ip in there} | {ip_network((route.dst, route.length)) for route in routes}
    return any(contains(cidr, each) and each != ip_network(cidr.network_address) for cidr in own for each in used)


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
