"""How far a node's dataplane is: what its kernel has of the lease table."""

from dataclasses import dataclass, field

from flannelette.services.core.conditions import Condition


@dataclass(frozen=True, slots=True)
class FailedLease:
    """A lease that a node could not program."""

    name: str
    reason: str
    """Why it could not, in one sentence."""


@dataclass(frozen=True, slots=True)
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
