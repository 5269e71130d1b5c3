"""Why a key of the store is refused."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The kind of reason for which a key is refused."""

    UNREADABLE = "unreadable"
    OVERLAP = "overlap"
    OUTSIDE_NETWORK = "outside_network"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a key is refused."""

    kind: Kind
    reason: str
    """One sentence."""
    other: str = ""
    """The lease that it overlaps."""
