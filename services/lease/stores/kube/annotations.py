"""The names of flannel's node annotations: `flannel.alpha.coreos.com/public-ip` and its siblings."""

import re
from dataclasses import dataclass
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import IPV4, Family

DEFAULT_PREFIX: Final = "flannel.alpha.coreos.com"
_LABEL: Final = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_PREFIX: Final = re.compile(rf"{_LABEL}(\.{_LABEL})+/([a-z0-9_-]+-)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FamilyKeys:
    """The annotations of one address family."""

    public: str
    """The address that peers send to."""
    data: str
    """The backend data, as JSON text."""
    overwrite: str
    """The operator's: what to publish whatever the node finds out."""
    chosen: str
    """The operator's: the node's address, like `--public-ip`."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """Every annotation that flannel reads or writes, by what it is for. Made by `annotations`."""

    managed: str
    """`true`: flannel runs on this node. `false`: it did, and gave its lease back."""
    backend_type: str
    """flannel's BackendType; empty for udp and alloc."""
    ipv4: FamilyKeys
    ipv6: FamilyKeys
    prefix: str
    """What all of them start with."""
    claiming: frozenset[str]
    """Those by which a node claims something; the operator's are none of them."""

    def of(self, family: Family) -> FamilyKeys:
        """Returns the keys of one family."""
        return self.ipv4 if family is IPV4 else self.ipv6


def annotations(prefix: str = DEFAULT_PREFIX) -> Annotations:
    """The names under `--kube-annotation-prefix`, by flannel's rules. Raises Misconfigured for one that breaks them.

    `flannel.alpha.coreos.com` gives `flannel.alpha.coreos.com/public-ip`, `example.com/net` gives
    `example.com/net-public-ip`.
    """
    start = prefix
    if "/" not in start:
        start += "/"
    if not start.endswith(("/", "-")):
        start += "-"
    if start.count("/") > 1 or not _PREFIX.fullmatch(start):
        raise Misconfigured(
            f"--kube-annotation-prefix is {prefix!r}: write a lower-case domain with at least one dot, then at most "
            f"one slash and a name of a-z, 0-9, - and _, for instance {DEFAULT_PREFIX} or example.com/net"
        )

    def keys(version: str) -> FamilyKeys:
        address = f"public-ip{version}"
        return FamilyKeys(
            f"{start}{address}",
            f"{start}backend-{version}{'-' if version else ''}data",
            f"{start}{address}-overwrite",
            f"{start}node-{address}",
        )

    managed, backend_type, ipv4, ipv6 = f"{start}kube-subnet-manager", f"{start}backend-type", keys(""), keys("v6")
    claiming = frozenset({managed, backend_type, ipv4.public, ipv4.data, ipv6.public, ipv6.data})
    return Annotations(managed, backend_type, ipv4, ipv6, start, claiming)
