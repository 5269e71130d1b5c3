"""Leases: which node holds which subnets; and how far a node's dataplane is, as to what its kernel has of them."""

from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeAlias

from flannelette.services.core.conditions import Condition
from flannelette.services.core.family import FAMILIES, Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable


@frozen
class VxlanData:
    """A VXLAN tunnel end point: flannel's `{"VNI":1,"VtepMAC":"c6:d2:32:6f:8f:44"}`."""

    vni: int
    mac: str
    """MAC address of the end point, in lower case, with colons."""


@frozen
class WireguardData:
    """A WireGuard peer: flannel's `{"PublicKey":"...","Port":51820}`; port 0: unknown."""

    public_key: str
    port: int


@frozen
class OpaqueData:
    """Backend data of a kind we do not know, as compact JSON text."""

    json: str


BackendData: TypeAlias = VxlanData | WireguardData | OpaqueData


@frozen
class Subnet:
    """What a lease holds in one address family."""

    cidr: Network
    public_address: Address | None = None
    """The address that peers send to, of the same family. None: unknown, so that no peer can send."""
    data: BackendData | None = None


@frozen
class Lease:
    """A node holds these subnets. Equal by value; the name is the identity while it lives."""

    name: str
    node: str
    """Empty: not known (a flanneld's), or a reservation without a holder."""
    subnets: tuple[Subnet, ...]
    """Subnets that the node holds: at most one a family, IPv4 first."""
    backend_type: str = ""
    expires_at: float | None = None
    """Unix seconds; None: never, or only the store knows."""
    reserved: bool = False
    claim_order: int = 0
    """The age of the claim: a number in an order of the store, older claims first; 0: unknown. See lease.proto."""
    cluster: str = ""
    """The cluster from which the lease is imported; empty: this one. See lease.proto."""

    @property
    def cidrs(self) -> tuple[Network, ...]:
        """The subnets of the lease, one for each family."""
        return tuple(subnet.cidr for subnet in self.subnets)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The public addresses that it publishes."""
        return tuple(subnet.public_address for subnet in self.subnets if subnet.public_address)

    @property
    def is_idle(self) -> bool:
        """Set aside and not in use: it takes its subnets, and is no peer."""
        return self.reserved and not any(subnet.public_address for subnet in self.subnets)

    def subnet(self, family: Family) -> Subnet | None:
        """Returns the lease's subnet of one family, if it has one."""
        return next((s for s in self.subnets if s.cidr.version == family.version), None)

    def held_by(self, node: str, claim_order: int) -> "Lease":
        """The same lease, of this node, which has claimed it then."""
        return Lease(self.name, node, self.subnets, self.backend_type, self.expires_at, self.reserved, claim_order)

    def with_time(self, expires_at: float | None) -> "Lease":
        """The same lease, until then."""
        return replace(self, expires_at=expires_at)


def lease_key(cidrs: "Iterable[Network]") -> str:
    """flannel's key of these subnets: `10.5.52.0-24`, dual stack `10.5.52.0-24&fd00:10:5:34::-64`."""
    by_version = {c.version: c for c in cidrs}
    return "&".join(
        f"{by_version[f.version].network_address}-{by_version[f.version].prefixlen}"
        for f in FAMILIES
        if f.version in by_version
    )


@frozen
class LeaseRequest:
    """What a node asks for: one part per enabled family; without IPv6 beside IPv4 where it has no address of it."""

    node: str
    backend_type: str
    parts: tuple["FamilyRequest", ...]
    excluded: tuple[Network, ...] = ()
    """Not to be given, though the store has them free: other nodes may still use them."""
    lost: tuple[Network, ...] = ()
    """What the node itself holds and the store has lost, by accident as far as anybody knows."""
    machine: str = ""
    """The token of the machine that asks; empty: unknown. See AcquireLeaseRequest in lease.proto."""

    def part(self, family: Family) -> "FamilyRequest | None":
        """The part of one family, if any."""
        return next((w for w in self.parts if family_of(w.public_address) is family), None)


@frozen
class FamilyRequest:
    """What a node asks for and publishes in one family."""

    public_address: Address
    data: BackendData | None = None
    previous: Network | None = None
    """The subnet it had, as `subnet.env` says; taken again if it is free and fits."""


@frozen
class FailedLease:
    """A lease that a node could not program."""

    name: str
    reason: str
    """Why it could not, in one sentence."""


@frozen
class Progress:
    """What a node's dataplane has programmed. A node says so only once a complete table is in its kernel."""

    node: str
    cursor: str
    """Every change up to here is in the kernel, but for the failed leases. Of the lease service's own epoch.

    Empty: nothing is there any more, since an operator tore it down.
    """
    failed: tuple[FailedLease, ...] = ()
    """Sorted by name; only the first ones, if there are many."""
    failed_count: int = 0
    """How many there are."""
    reached_at: float | None = field(default=None, compare=False)
    """When the kernel had got so far, on this process's monotonic clock. None: not known."""
    findings: tuple[Condition, ...] = ()
    """Problems of the node, the gravest first; no more than MOST_REPORTED."""
    version: str = ""
    """The release of the dataplane."""
    machine: str = ""
    """The token of the node's machine; empty: unknown. See AcquireLeaseRequest in lease.proto."""
