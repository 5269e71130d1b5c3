"""Values of one look at the kernel: its subject, the kernel's answers, and the findings."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from services.core.family import FAMILIES, Address, Family, Network
from services.core.leases.conflicts import KINDS
from services.dataplane.diagnose.answers import Answer, HostAddress, InterfaceState, Lookup, Policy, PolicyRule
from services.dataplane.links.desired import Device
from services.dataplane.netlink.objects import Route
from services.dataplane.peers.peer import Peer
from services.dataplane.peers.peer_set import PeerSet
from services.dataplane.underlay.selection import Underlay

BROKEN: Final = "forwarding is broken: "
"""The first words of the reason, where a finding makes the node not ready."""
BRIDGE: Final = "cni0"
"""What CNI's plugin `bridge` calls its bridge in flannel's configuration."""
DOCKER: Final = "docker0"
"""What docker calls its bridge, which has the node's subnet where docker has flannel's `--bip`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule, route or setting of the host that keeps packets from the overlay."""

    check: str
    """A word: the row of the table in docs/operations.md."""
    problem: str
    """What does not work, one sentence; `{peers}` stands for the nodes of these peers."""
    cause: str
    """Of the host, one sentence."""
    cure: str
    """The exact command; empty: none is known."""
    evidence: str
    """What the kernel said, in iproute2 notation."""
    peers: tuple[tuple[str, str], ...] = ()
    """Lease and node of each peer it was found with; empty: it concerns the node."""
    is_general: bool = False
    """It concerns the whole node, also where it was found with some peers."""
    is_broken: bool = True
    """Packets are lost for certain."""

    @property
    def breaks_node(self) -> bool:
        """Forwarding of the whole node is broken."""
        return self.is_broken and (self.is_general or not self.peers)

    @property
    def sentence(self) -> str:
        """The problem, with the names of the peers."""
        nodes = [node or lease for lease, node in self.peers[:3]]
        more = f" and {len(self.peers) - 3} more" if len(self.peers) > 3 else ""
        who = "any peer" if self.is_general else ", ".join(nodes) + more
        return self.problem.replace("{peers}", who)


def unreachable(found: Iterable[Finding]) -> dict[str, str]:
    """Why peers cannot be reached for certain, by lease name."""
    return {
        lease: f"{each.cause} Cure: {each.cure}" if each.cure else each.cause
        for each in found
        if each.is_broken and not each.breaks_node
        for lease, _ in each.peers
    }


@dataclass(frozen=True, slots=True)
class PeerPath:
    """How packets get to a peer in one family."""

    lease: str
    node: str
    subnet: Network
    route: Route
    """Ours to the subnet."""
    public: Address | None
    """Where the tunnel ends; None: the route is direct."""


@dataclass(frozen=True, slots=True)
class Way:
    """One of the lookups of a peer."""

    check: str
    question: Lookup
    problem: str
    network: Network
    """Of which an address may stand for all."""
    path: PeerPath


@dataclass(frozen=True, slots=True)
class Scope:
    """What a look is about."""

    networks: Mapping[Family, Network]
    own: Mapping[Family, Network]
    """The own subnets."""
    underlay: Underlay
    devices: Mapping[Family, Device]
    """The overlay's."""
    port: int
    """UDP port of the tunnels; 0: none."""
    leases: Set[str]
    """Of the peers that are looked at."""
    paths: tuple[PeerPath, ...]
    """To those of them that are programmed."""
    subnets: Callable[[], Sequence[tuple[Network, str, str]]]
    """Of all peers, with lease and node; asked only where something looks odd."""
    foreign: Sequence[Route]
    """Routes inside the network that are not ours."""
    bridges: Mapping[Family, int] = field(default_factory=dict)
    """The bridge of the pods at an earlier look."""
    remembered: Mapping[bytes, Route] = field(default_factory=dict)
    """By which route an address of the underlay was reached at an earlier look."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The kernel, at one moment."""

    names: Mapping[int, str] = field(default_factory=dict)
    addresses: Sequence[HostAddress] = ()
    bridges: Mapping[Family, int] = field(default_factory=dict)
    """The bridge of the pods, where it can be told."""
    ways: Sequence[Way] = ()
    """What is asked about the peers."""
    links: Mapping[int, InterfaceState] = field(default_factory=dict)
    forwarding: Mapping[tuple[Family, int], bool] = field(default_factory=dict)
    policies: Sequence[Policy] = ()
    answers: Mapping[Lookup, Answer] = field(default_factory=dict)
    neighbours: Mapping[tuple[bytes, int], bytes] = field(default_factory=dict)
    """Permanent neighbour entries of the next hops to the peers' tunnels."""
    rules: Mapping[Family, Sequence[PolicyRule]] = field(default_factory=dict)
    routes: Mapping[Family, Sequence[Route]] = field(default_factory=dict)
    """Of all tables; only where an answer was not as it should be."""


def family_of_af(af: int) -> Family:
    """By the number of Linux."""
    return next(family for family in FAMILIES if family.af == af)


def pod_address(subnet: Network) -> bytes:
    """An address that a pod of this subnet may have, and the host has not."""
    return subnet[-2].packed


def gateway_of(subnet: Network) -> Address:
    """The first address for pods, which a node's bridge has."""
    return subnet[1]


def ip(family: Family) -> str:
    """The program's name for a family."""
    return "ip" if family.version == 4 else "ip -6"


_OURS: Final = frozenset({"own-subnet", "own-address", "own-mac"})
"""Rules of `admission` by which a lease claims what this node has."""
_MOST: Final = 10
"""Findings; ListPeers has all."""


def claim_findings(peer_set: PeerSet) -> list[Finding]:
    """What of our lease other nodes do not carry, and which leases of others are not carried for what they claim."""
    own = [
        Finding(
            "own-claim",
            f"Other nodes send no packets here: our lease loses to that of {loss.winner.node or loss.winner.name}.",
            f"The own lease {loss.lease.name}: {loss.reason}.",
            "",
            "",
        )
        for loss in peer_set.own_losses
    ]
    return own + list(islice(_of_others(list(peer_set.peers.values())), _MOST))


def _of_others(peers: list[Peer]) -> Iterator[Finding]:
    for peer in peers:
        for refusal in peer.refusals:
            if refusal.rule not in _OURS and refusal.rule not in KINDS:
                continue
            who = f"Node {peer.lease.node}" if peer.lease.node else f"The lease {peer.lease.name}"
            whose = "of this node" if refusal.rule in _OURS else "of another node"
            yield Finding(
                "claim",
                f"{who} claims a subnet, MAC, key or address {whose}, and gets no packets.",
                f"The lease {peer.lease.name}: {refusal.reason}.",
                "",
                "",
                ((peer.lease.name, peer.lease.node),),
            )
