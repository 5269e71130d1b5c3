"""What a bench finds, as JSON and as a table."""

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one comparison."""

    name: str
    parameters: Mapping[str, int]
    unit: str
    ours: float
    peers: Mapping[str, float]
    """Measured in the same run."""
    less_is_better: bool
    cpu_seconds: float
    """CPU of our own processes, user and system, for the round that `ours` is from."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else is to be told of ours, where it applies: `p50_ms`, `p99_ms`, `lost`, ..."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """What nobody can be better than, measured in the same run; no peers of ours."""
    peak_rss_mib: float | None = None
    """The most memory that ours had; None: it is the process of the bench itself."""

    @property
    def ratio(self) -> float:
        """How many times better ours is than the best peer, whichever way the unit runs."""
        if self.less_is_better:
            return min(self.peers.values()) / self.ours
        return self.ours / max(self.peers.values())

    def json(self) -> str:
        """One object on one line."""
        return json.dumps(
            {
                "name": self.name,
                "parameters": dict(self.parameters),
                "unit": self.unit,
                "ours": _rounded(self.ours),
                "peers": {name: _rounded(figure) for name, figure in self.peers.items()},
                "ratio": round(self.ratio, 2),
                **({"limits": {name: _rounded(limit) for name, limit in self.limits.items()}} if self.limits else {}),
                **{name: _rounded(figure) for name, figure in self.figures.items()},
                "cpu_seconds": _rounded(self.cpu_seconds),
                "peak_rss_mib": round(self.peak_rss_mib or _own_peak_mib(), 1),
            }
        )

    def show(self, console: Console) -> None:
        """The same, to be read."""
        fields = json.loads(self.json())
        settings = ", ".join(f"{name} {value}" for name, value in self.parameters.items())
        table = Table()
        table.add_column("contender")
        table.add_column(self.unit, justify="right")
        table.add_row("ours", f"{fields['ours']}", style="bold")
        for name, figure in fields["peers"].items():
            table.add_row(name, f"{figure}")
        for name, limit in fields.get("limits", {}).items():
            table.add_row(name, f"{limit}", style="dim")
        console.print(f"[bold]{self.name}[/bold] ({settings})")
        console.print(table)
        if self.figures:
            console.print(", ".join(f"{name} {fields[name]}" for name in self.figures), highlight=False)
        console.print(
            f"{fields['ratio']} times the best peer; ours took {fields['cpu_seconds']} s of CPU, "
            f"{fields['peak_rss_mib']} MiB at most",
            highlight=False,
        )


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench: what it says, what can be set, what runs it."""

    name: str
    summary: str
    parameters: Mapping[str, int]
    """Each is an option of this name, with this default."""
    run: Callable[[Mapping[str, int]], Result]


class BenchFailed(Exception):
    """A contender did not do its work, so there is nothing to compare; the message says which and how."""


class NotHere(BenchFailed):
    """The machine cannot run a contender; the message says what it lacks."""


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    """`p50_ms`, `p95_ms` and `p99_ms`; empty for no values."""
    ordered = sorted(milliseconds)
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99} if ordered else {}
    return {name: ordered[min(int(len(ordered) * share), len(ordered) - 1)] for name, share in shares.items()}


def _own_peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")
