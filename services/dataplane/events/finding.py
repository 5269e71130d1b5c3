"""A finding: a problem of the host or of the leases that keeps packets from peers or pods, with cause and cure."""

from dataclasses import dataclass

from flannelette.services.core.finding import Finding as GeneralFinding


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
    """The exact command; empty: none is known. `doctor --fix` may carry out a Cure (services/core/cure.py)."""
    evidence: str
    """What the kernel said, in iproute2 notation."""
    peers: tuple[tuple[str, str], ...] = ()
    """Lease and node of each peer it was found with; empty: it concerns the node."""
    is_general: bool = False
    """It concerns the whole node, also where it was found with some peers."""
    is_broken: bool = True
    """Packets are lost for certain."""
    is_remote: bool = False
    """The cause is another node, and nothing is wrong with this one."""
    is_soon: bool = False
    """Nothing is lost yet, and will be if nothing is done."""
    is_part: bool = False
    """The finding is about some pods of this node: the others send and receive."""

    @classmethod
    def of_service(cls, finding: GeneralFinding) -> "Finding":
        """A problem of the service itself."""
        texts = (finding.check, finding.problem, finding.cause, finding.cure, finding.evidence)
        return cls(*texts, is_broken=finding.is_broken, is_soon=finding.is_soon)

    def reported(self) -> GeneralFinding:
        """Returns the finding in the form in which the lease service is told of it."""
        texts = (self.check, self.sentence, self.cause, self.cure, self.evidence)
        return GeneralFinding(*texts, self.is_broken, self.is_soon).bounded()

    @property
    def breaks_node(self) -> bool:
        """Forwarding of the whole node is broken."""
        return self.is_broken and not self.is_part and (self.is_general or not self.peers)

    @property
    def sentence(self) -> str:
        """The problem, with the names of the peers."""
        nodes = [node or lease for lease, node in self.peers[:3]]
        more = f" and {len(self.peers) - 3} more" if len(self.peers) > 3 else ""
        who = "any peer" if self.is_general else ", ".join(nodes) + more
        return self.problem.replace("{peers}", who)
