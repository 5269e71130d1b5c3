"""A row of the table of faults that lose packets in silence: how it is seeded, what doctor says, what cures it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SilentFault:
    """In the texts the names of `words` stand in braces."""

    act: str
    """What is typed on n1."""
    check: str
    """Which check finds it."""
    cause: str
    """What it says is wrong on the host, whole sentences; `*` stands for what differs from run to run."""
    cure: str
    """What is to be typed, as it stands."""
    says: str = "node"
    """`node`: it is not ready; `device`: nor can peers be programmed; `peer`: the peer counts as failed; `part`:
    neither; `own part`: of no peer.
    """
    is_far: bool = False
    """The peer is behind a gateway."""
    backend: str = "vxlan"
    versions: tuple[int, ...] = (4, 6)
    is_answered: bool = False
    """Pings of this pod are answered nevertheless."""
    is_told: bool = True
    """The kernel tells of it; else the next look finds it."""
    and_then: str = field(default="true")
    """What else has to be typed behind the cure, which is about one thing."""
    problem: str = ""
    """What it says does not work, the whole sentence."""
    evidence: str = ""
    """The kernel's answer."""
    undo: str = ""
    """What is typed where doctor knows no command, or one that is not there where it is tried."""
    is_probed: bool = False
    """Probes find it."""
    service: str = "dataplane"
    """Which finds it."""
    what: str = ""
    """The fault in words, where its command says little."""
