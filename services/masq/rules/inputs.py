"""What masq knows of the world: the network and the own subnets, folded from the feed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.core.family import Network
from services.core.leases.lease import Lease
from services.core.leases.network_moves import in_force
from services.core.leases.table import Table
from services.core.network import NetworkConfig, contains


@dataclass(frozen=True, slots=True)
class RuleInputs:
    """The network in force and what this node holds of it. What was known once stays until it is known better."""

    network: NetworkConfig | None = None
    network_error: str = ""
    """Why what the store has is not in force."""
    subnets: tuple[Network, ...] = ()
    """The own ones, IPv4 first; the last known, once the lease is lost."""
    has_lease: bool = False

    def reasons(self, node: str) -> tuple[str, str]:
        """Why the rules may not be complete: for the network, for the lease. Empty: nothing in the way."""
        network = lease = ""
        if self.network is None:
            network = "the network is not known yet: " + (self.network_error or "the lease service has not sent it")
        if not self.has_lease:
            kept = "the last rules stay" if self.subnets else "there is nothing to masquerade yet"
            lease = f"node {node} has no lease: {kept}; is its dataplane running?"
        elif self.network:
            bare = [str(row.family) for row in self.network.families if not self._has_subnet(row.family.version)]
            if bare:
                lease = f"the lease of node {node} has no {' and no '.join(bare)} subnet inside the network"
        return network, lease

    def _has_subnet(self, version: int) -> bool:
        return any(subnet.version == version for subnet in self.subnets)


@dataclass(frozen=True, slots=True)
class CachedInputs:
    """What is remembered of before the start, in force until there is a snapshot."""

    table: Table
    """With the own lease only if that is still to be assumed."""
    reason: str
    """Why we are not ready meanwhile."""


def next_inputs(
    before: RuleInputs,
    table: Table,
    node: str,
    allowed: Sequence[Network] = (),
    remembered: NetworkConfig | None = None,
) -> RuleInputs:
    """What is known after a step of the feed. `remembered` is the network that an earlier process went by.

    A lost lease leaves its subnets in force for as long as the network has room for them. A network outside of what
    the operator allows is not taken, and the one before stays; so it does when the new one would take the own subnets
    away, which waits for an operator (ADR 25).
    """
    lease = own_lease(table, node)
    held = lease.cidrs if lease else ()
    network, network_error = before.network, table.network_error
    if table.network:
        last = before.network or (None if remembered and _forbidden(remembered, allowed) else remembered)
        network = in_force(table.network, held, last)
        if not all(_is_allowed(cidr, allowed) for cidr in network.beside):
            network = replace(network, beside=tuple(cidr for cidr in network.beside if _is_allowed(cidr, allowed)))
    if network and (forbidden := _forbidden(network, allowed)):
        network, network_error = before.network, forbidden
    subnets = held or before.subnets
    if network:
        known = [cidr for row in network.families for cidr in network.cidrs(row.family)]
        subnets = tuple(s for s in subnets if any(contains(cidr, s) for cidr in known))
    return RuleInputs(network, network_error, subnets, lease is not None)


def networks_of(network: NetworkConfig) -> set[Network]:
    """All that rules of a network are about."""
    return {cidr for row in network.families for cidr in network.cidrs(row.family)}


def own_lease(table: Table, node: str) -> Lease | None:
    """The one that says what this node holds now."""
    return next((lease for lease in table.leases.values() if lease.node == node and not lease.is_idle), None)


def _is_allowed(network: Network, allowed: Sequence[Network]) -> bool:
    return not allowed or any(contains(limit, network) for limit in allowed)


def _forbidden(network: NetworkConfig, allowed: Sequence[Network]) -> str:
    """Why a network may not be taken; empty if it may. Nothing is forbidden where nothing is said."""
    for row in network.families if allowed else ():
        if not _is_allowed(row.cidr, allowed):
            limits = ", ".join(map(str, allowed))
            return f"the network {row.cidr} is not within what --allowed-network allows here, {limits}: correct one"
    return ""
