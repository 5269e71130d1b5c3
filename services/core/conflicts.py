"""Which of two leases that claim the same thing keeps it: one rule, for every service. Pure."""

from sys import maxsize
from typing import TypeAlias

from services.core.lease import Lease

Rank: TypeAlias = tuple[bool, int, str]
"""The better one is less."""


def rank_of(lease: Lease) -> Rank:
    """A lease of a known node before one of nobody, then the older claim, then the name.

    It depends on the lease alone: whoever sees the same leases comes to the same result, in whatever order they came.
    """
    return (not lease.node, lease.claim_order or maxsize, lease.name)
