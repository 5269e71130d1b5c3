"""What the tests of the compose lab measured, for the last line."""

from dataclasses import dataclass, field


@dataclass
class Figures:
    """Filled by the tests as they go."""

    compose: str = ""
    """Its version."""
    hosts: int = 0
    up_seconds: float = 0.0
    within_rights: int = 0
    back: dict[str, float] = field(default_factory=dict)
    """Seconds until everything worked again, by what was killed or restarted."""
    pings: int = 0
    """On paths that should not have noticed anything."""
    lost: int = 0

    def __str__(self) -> str:
        slowest = max(self.back, key=lambda name: self.back[name], default="nothing")
        parts = (
            f"{self.hosts} hosts up in {self.up_seconds:.1f} s",
            f"{self.within_rights} containers within their rights",
            f"{len(self.back)} kills and restarts, well again within {self.back.get(slowest, 0):.1f} s ({slowest})",
            f"{self.pings:,} pings meanwhile that nothing should disturb, {self.lost} lost",
        )
        return f"compose {self.compose}: " + "; ".join(parts)


FIGURES = Figures()
