"""The inputs of the rules: the network in force and the own subnets, folded from the feed. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from flannelette.services.core.addresses import network_refusal
from flannelette.services.core.family import Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.network_moves import in_force
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig, contains

Refusal: TypeAlias = Callable[[NetworkConfig], str]
"""Why a network cannot be in force here, beside the others of the host; empty: it can."""


def no_refusal(network: NetworkConfig) -> str:
    """Refuses no network: the check of a host without other networks."""
    return ""


@frozen
class RuleInputs:
    """The network in force and the own subnets. A value stays until a newer one is known."""

    network: NetworkConfig | None = None
    network_error: str = ""
    """Why the network configuration of the store is not in force."""
    subnets: tuple[Network, ...] = ()
    """The own subnets, IPv4 first; the last known ones once the lease is lost."""
    has_lease: bool = False

    def reasons(self, node: str) -> tuple[str, str]:
        """Why the rules may be incomplete: a reason for the network, one for the lease. Empty: they are."""
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


@frozen
class CachedInputs:
    """The cached table of before the start, in force until there is a snapshot."""

    table: Table
    """Has the own lease only if it may still be assumed."""
    reason: str
    """Why the service is not ready meanwhile."""


def next_inputs(
    before: RuleInputs,
    table: Table,
    node: str,
    allowed: Sequence[Network] = (),
    cached: NetworkConfig | None = None,
    refusal: Refusal = no_refusal,
    connected: Sequence[Network] = (),
) -> RuleInputs:
    """The inputs after a step of the feed. `cached` is the network that an earlier process applied; `connected` are
    those of the node's own interfaces in the underlay.

    The subnets of a lost lease stay in force as long as the network contains them. A network that the operator does
    not allow, or that no overlay may have, is not applied, and the previous one stays; likewise if the new one would
    take the own subnets away, which waits for an operator (ADR 25).
    """
    lease = own_lease(table, node)
    held = lease.cidrs if lease else ()
    network, network_error = before.network, table.network_error
    if table.network:
        is_bad = cached is not None and bool(_impossible(cached, connected) or _forbidden(cached, allowed))
        last = before.network or (None if is_bad else cached)
        network = in_force(table.network, held, last)

        def is_taken(cidr: Network) -> bool:
            return _is_allowed(cidr, allowed) and not network_refusal(cidr, connected)

        if not all(map(is_taken, (*network.beside, *network.imported))):
            beside, imported = (tuple(filter(is_taken, cidrs)) for cidrs in (network.beside, network.imported))
            network = replace(network, beside=beside, imported=imported)
    if network and (forbidden := _impossible(network, connected) or _forbidden(network, allowed) or refusal(network)):
        network, network_error = before.network, forbidden
    subnets = held or before.subnets
    if network:
        known = [cidr for row in network.families for cidr in network.cidrs(row.family)]
        subnets = tuple(s for s in subnets if any(contains(cidr, s) for cidr in known))
    return RuleInputs(network, network_error, subnets, lease is not None)


def networks_of(network: NetworkConfig) -> set[Network]:
    """The address ranges that rules of a network may name."""
    return {cidr for row in network.families for cidr in network.cidrs(row.family)}


def own_lease(table: Table, node: str) -> Lease | None:
    """The lease that this node holds in the table."""
    return next((lease for lease in table.leases.values() if lease.node == node and not lease.is_idle), None)


def _is_allowed(network: Network, allowed: Sequence[Network]) -> bool:
    return not allowed or any(contains(limit, network) for limit in allowed)


def _impossible(network: NetworkConfig, connected: Sequence[Network]) -> str:
    """Why no overlay may have this network; empty: it may."""
    refusals = (network_refusal(row.cidr, connected) for row in network.families)
    return next(filter(None, refusals), "")


def _forbidden(network: NetworkConfig, allowed: Sequence[Network]) -> str:
    """Why a network is not allowed; empty: it is. Without limits, all are."""
    for row in network.families if allowed else ():
        if not _is_allowed(row.cidr, allowed):
            limits = ", ".join(map(str, allowed))
            return f"the network {row.cidr} is not within what --allowed-network allows here, {limits}: correct one"
    return ""
