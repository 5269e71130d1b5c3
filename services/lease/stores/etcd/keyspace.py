"""The keys under the prefix: which of them mean something, and what."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Kind(Enum):
    """What a key is."""

    CONFIG = auto()
    """The network configuration."""
    SUBNET = auto()
    """A lease, or what stands in its place; the name is the rest of the key, not yet checked."""
    HOLDER = auto()
    """Who holds the lease of the same name."""
    FOREIGN = auto()
    """Under what flannel watches (the prefix `subnets`, without a closing slash), but no lease."""
    OTHER = auto()
    """None of our business."""


@dataclass(frozen=True, slots=True)
class Keyspace:
    """flannel's keys `<prefix>/config` and `<prefix>/subnets/...`, and ours beside them.

    flanneld watches everything that starts with `<prefix>/subnets`, so no key of ours may start like that.
    """

    prefix: str

    @property
    def root(self) -> bytes:
        """What all keys start with; one watch on it sees everything in one order."""
        return f"{self.prefix}/".encode()

    @property
    def config(self) -> bytes:
        """The key of the network configuration."""
        return self.root + _CONFIG

    @property
    def subnets(self) -> bytes:
        """What all leases start with."""
        return self.root + _SUBNETS

    def subnet(self, name: str) -> bytes:
        """The key of a lease."""
        return self.root + _SUBNETS + name.encode()

    def holder(self, name: str) -> bytes:
        """The key that says who holds a lease."""
        return self.root + _HOLDERS + name.encode()

    def classify(self, key: bytes) -> tuple[Kind, str]:
        """What a key is, and its name: the lease's for SUBNET and HOLDER, else the whole key."""
        rest = key.removeprefix(self.root)
        if rest.startswith(_SUBNETS) and len(rest) > len(_SUBNETS):
            return Kind.SUBNET, readable(rest[len(_SUBNETS) :])
        if rest.startswith(_HOLDERS):
            return Kind.HOLDER, readable(rest[len(_HOLDERS) :])
        if rest == _CONFIG:
            return Kind.CONFIG, readable(key)
        return Kind.FOREIGN if rest.startswith(_SUBNETS[:-1]) else Kind.OTHER, readable(key)


def readable(key: bytes) -> str:
    """A key as text; no two keys give the same."""
    return key.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


_CONFIG: Final = b"config"
_SUBNETS: Final = b"subnets/"
_HOLDERS: Final = b"holders/"
