"""What a simulation has shown: as JSON, and as tables to be read. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from lab.simulate.faults import Act
from lab.simulate.options import Options
from lab.simulate.run import Outcome, Sample

_NAMES = 3


def at_share(values: Sequence[float], share: float) -> float | None:
    """The value that this share of the sorted values does not exceed; None of none."""
    return values[min(int(len(values) * share), len(values) - 1)] if values else None


def figures(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON: of times the percentiles."""
    return {
        "options": option_figures(outcome.options),
        "right": outcome.is_right,
        "failures": outcome.failures,
        "acts": [_act(act) for act in outcome.acts],
        "tiers": list(_tiers(outcome)),
        "samples": [[round(s.at, 1), _rounded(s.cpu), dict(s.mib)] for s in outcome.samples],
    }


def option_figures(options: Options) -> dict[str, Any]:
    """The options as JSON: those that decide what happens."""
    here = {name: value for name, value in asdict(options).items() if name not in ("json", "svg", "keep")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in here.items()}


def line(act: Act) -> str:
    """One line when an act is over."""
    p50, p99, last = (_seconds(value) for value in _percentiles(act.told))
    right = "all tables and kernels as in etcd" if act.is_right else "; ".join(differences(act))
    return f"{act.ended:7.1f} s  {act.words}: p50 {p50}, p99 {p99}, last {last}; {right}"


def differences(act: Act) -> Iterator[str]:
    """What was not as it should be, in words."""
    for words, names in (
        ("did not get everything", act.missing),
        ("had another table than etcd", act.tables),
        ("had another kernel", act.kernels),
    ):
        if names:
            yield f"{len(names)} nodes {words} ({_some(names)})"
    if act.strays:
        yield f"{len(act.strays)} leases in etcd are no node's, or the second of one ({_some(act.strays)})"


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_NAMES])}{', ...' * (len(names) > _NAMES)}"


def tables(outcome: Outcome) -> RenderableType:
    """The outcome, to be read."""
    found = figures(outcome)
    acts = Table(title="Until every node has everything", title_justify="left")
    for name in ("", "p50", "p99", "last", "own lease", "differ"):
        acts.add_column(name, justify="left" if not name else "right")
    for act in outcome.acts:
        differ = len({*act.missing, *act.tables, *act.kernels})
        cells = map(_seconds, (*_percentiles(act.told), act.leased[-1] if act.leased else None))
        acts.add_row(act.words, *cells, str(differ), style="" if act.is_right else "red")
    tiers = Table(title="What it cost", title_justify="left")
    for name in ("", "processes", "CPU s", "of a core", "busiest", "peak MiB", "messages", "MB"):
        tiers.add_column(name, justify="left" if not name else "right")
    for tier in found["tiers"]:
        tiers.add_row(
            tier["tier"],
            str(tier["processes"]),
            f"{tier['cpu_seconds']:,.0f}",
            f"{tier['percent']:.0f} %",
            f"{tier['busiest_percent']:.0f} %",
            f"{tier['peak_mib']:,}",
            f"{tier['messages']:,}" if tier["messages"] else "",
            f"{tier['bytes'] / 1e6:,.1f}" if tier["bytes"] else "",
        )
    kernels = outcome.acts[-1].checked if outcome.acts else 0
    verdict = "No table and no kernel differed from etcd." if outcome.is_right else "Differences from etcd:"
    wrong = [f"{act.words}: {each}" for act in outcome.acts for each in differences(act)]
    return Group(
        acts,
        tiers,
        Text(f"{outcome.options.nodes:,} tables, {kernels:,} kernels compared."),
        Text("\n".join((verdict, *wrong, *outcome.failures)), style="bold" if outcome.is_right else "bold red"),
    )


def _act(act: Act) -> dict[str, Any]:
    told, leased = _percentiles(act.told), _percentiles(act.leased)
    names = ("p50", "p99", "last")
    return {
        "name": act.name,
        "words": act.words,
        "began": round(act.began, 2),
        "calm": round(act.calm, 2),
        "ended": round(act.ended, 2),
        "told": dict(zip(names, map(_digits, told), strict=True)) if act.told else {},
        "leased": dict(zip(names, map(_digits, leased), strict=True)) if act.leased else {},
        "differences": list(differences(act)),
        "leases": act.leases,
        "kernels": act.checked,
        "cpu": _rounded(act.cpu),
        "messages": dict(act.messages),
        "bytes": dict(act.bytes),
        "reports": act.reports,
    }


def _tiers(outcome: Outcome) -> Iterator[dict[str, Any]]:
    samples, options = outcome.samples, outcome.options
    if not samples:
        return
    seconds = samples[-1].at - samples[0].at or 1.0
    services = {f"tier {n}": count + options.per_node for n, count in enumerate(options.tiers)}  # and the marker's
    processes = {"etcd": 1, **services, "nodes": options.crowds}
    for tier, count in processes.items():
        cpu = samples[-1].cpu[tier] - samples[0].cpu[tier]
        yield {
            "tier": tier,
            "processes": count,
            "cpu_seconds": round(cpu, 1),
            "percent": round(100 * cpu / seconds, 1),
            "busiest_percent": round(max((p for _, p in rates(samples, tier)), default=0.0), 1),
            "peak_mib": max(sample.mib[tier] for sample in samples),
            "messages": sum(act.messages.get(tier, 0) for act in outcome.acts),
            "bytes": sum(act.bytes.get(tier, 0) for act in outcome.acts),
        }


def rates(samples: Sequence[Sample], tier: str) -> list[tuple[float, float]]:
    """The moments, and how many percent of a core a tier took up to there."""
    return [
        (after.at, max(0.0, 100 * (after.cpu[tier] - before.cpu[tier]) / (after.at - before.at)))
        for before, after in pairwise(samples)
        if after.at > before.at
    ]


def _percentiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    return at_share(values, 0.5), at_share(values, 0.99), values[-1] if values else None


def _digits(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _rounded(values: "dict[str, float] | Any") -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}
