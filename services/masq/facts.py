"""What masq knows of the world: the network and the own subnets, folded from the feed. Pure."""

from dataclasses import dataclass

from services.core.family import Network
from services.core.network import NetworkConfig, contains
from services.core.table import Table


@dataclass(frozen=True, slots=True)
class Facts:
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
            network = "the network is not known yet: " + (self.network_error or "the lease service has not told it")
        if not self.has_lease:
            kept = "its last rules stay" if self.subnets else "there is nothing to masquerade yet"
            lease = f"node {node} has no lease: {kept}; is its dataplane running?"
        elif self.network:
            bare = [str(row.family) for row in self.network.families if not self._has_subnet(row.family.version)]
            if bare:
                lease = f"the lease of node {node} has no {' and no '.join(bare)} subnet inside the network"
        return network, lease

    def _has_subnet(self, version: int) -> bool:
        return any(subnet.version == version for subnet in self.subnets)


def next_facts(before: Facts, table: Table, node: str) -> Facts:
    """What is known after a step of the feed.

    A lost lease leaves its subnets in force for as long as the network has room for them.
    """
    network = table.network or before.network
    own = (lease for lease in table.leases.values() if lease.node == node and not lease.is_idle)
    lease = next(own, None)
    subnets = tuple(subnet.cidr for subnet in lease.subnets) if lease else before.subnets
    if network:
        subnets = tuple(s for s in subnets if any(contains(row.cidr, s) for row in network.families))
    return Facts(network, table.network_error, subnets, lease is not None)
