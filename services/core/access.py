"""Authorization of calls over TLS: a certificate names its bearer by URI, and every call has a requirement. Pure.

flannelette://node/NAME/dataplane   the dataplane of a node
flannelette://node/NAME/masq        its masq
flannelette://relay/NAME            a lease service that stands between nodes and another lease service
flannelette://cluster/NAME          the lease services of another cluster, which import leases from this one
flannelette://admin/NAME            a person or a program that operates the overlay
"""

import re
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final

from flannelette.services.core.frozen import frozen

_URI: Final = re.compile(
    r"flannelette://(?:node/(?P<node>NAME)/(?P<service>dataplane|masq)|(?P<role>relay|cluster|admin)/(?P<name>NAME))".replace(
        "NAME", r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
    ),
    re.ASCII,
)


class Role(Enum):
    """What the bearer of a certificate is."""

    DATAPLANE = "dataplane"
    MASQ = "masq"
    RELAY = "relay"
    CLUSTER = "cluster"
    ADMIN = "admin"


@frozen
class Principal:
    """One URI of a certificate."""

    role: Role
    name: str
    """Name of the node, for a dataplane and a masq; of the other roles, what the URI has after the role."""

    @property
    def uri(self) -> str:
        """The principal as the URI that stands in the certificate."""
        if self.role in (Role.DATAPLANE, Role.MASQ):
            return f"flannelette://node/{self.name}/{self.role.value}"
        return f"flannelette://{self.role.value}/{self.name}"


class Requirement(Enum):
    """What a call needs; every member may do what any member may."""

    MEMBER = "a URI flannelette://node/..., flannelette://relay/... or flannelette://admin/..."
    """Looking: any of the four."""
    IMPORTER = "MEMBER, or flannelette://cluster/..."
    """Looking at what is shown to other clusters."""
    HOLDER = "flannelette://node/NAME/dataplane of the node that the request names"
    """Acting as a node: its own dataplane, or a relay, which has looked at the certificate of that dataplane."""
    WATCHER = "HOLDER for who watches everything in the name of a node, else MEMBER"
    """Watching in the name of a node, which counts as that node's dataplane being alive; every other such stream only
    looks."""
    ADMIN = "flannelette://admin/..."
    """Changing what belongs to no node, or to all of them."""


def principals(uris: Iterable[str]) -> frozenset[Principal]:
    """The principals of a certificate. A URI of another scheme is none, and one of ours with a typo neither."""
    found = set()
    for match in map(_URI.fullmatch, uris):
        if match:
            role = Role(match["service"] or match["role"])
            found.add(Principal(role, match["node"] or match["name"]))
    return frozenset(found)


def refusal(
    bearer: Collection[Principal],
    requirement: Requirement,
    node: str = "",
    *,
    whole: bool = True,
    exported: bool = False,
) -> str:
    """Why the bearer may not, in a sentence that says what would do; empty: it may.

    `node` is the node that the request names. `whole` is for WATCHER: the request is for the whole table; `exported`:
    for what other clusters are shown.
    """
    if requirement is Requirement.WATCHER and exported:
        requirement = Requirement.IMPORTER
    elif requirement is Requirement.WATCHER:
        requirement = Requirement.HOLDER if node and whole else Requirement.MEMBER
    if _may(bearer, requirement, node):
        return ""
    if not bearer:
        return "the certificate has no URI like flannelette://node/NAME/dataplane or flannelette://admin/NAME"
    return f"{_wanted(requirement, node)}; this is {', '.join(sorted(p.uri for p in bearer))}"


def _may(bearer: Collection[Principal], requirement: Requirement, node: str) -> bool:
    match requirement:
        case Requirement.MEMBER:
            return any(p.role is not Role.CLUSTER for p in bearer)
        case Requirement.IMPORTER:
            return bool(bearer)
        case Requirement.ADMIN:
            return any(p.role is Role.ADMIN for p in bearer)
        case Requirement.HOLDER if node:
            return Principal(Role.DATAPLANE, node) in bearer or any(p.role is Role.RELAY for p in bearer)
    return False


def _wanted(requirement: Requirement, node: str) -> str:
    if requirement is Requirement.ADMIN:
        return "the call needs a certificate with a URI flannelette://admin/NAME"
    if requirement is Requirement.MEMBER:
        return "another cluster may only watch what this one exports (VIEW_EXPORTED)"
    if not node:
        return "node is empty: over TLS a request names the node that it is for"
    uri = Principal(Role.DATAPLANE, node).uri
    return f"only the dataplane of node {node} may do this for it: a certificate with the URI {uri}"
