"""What a run of chaos prints, and its figures."""

import time
from collections import Counter
from dataclasses import asdict
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab.chaos.options import Options
from lab.chaos.outcome import NO_FAULT, Happened, Outcome, blamed
from lab.chaos.table import FAULTS

_console: Final = Console(highlight=False)


def title(options: Options) -> None:
    """Prints the first line of the report."""
    backends = " and ".join(options.backends)
    _console.print(f"[bold]flannelette chaos[/] · {backends}, {options.minutes:g} min, SEED={options.seed}\n")


def step(text: str) -> None:
    """Prints a step of the run that is no fault."""
    _console.print(f"[dim]{time.strftime('%H:%M:%S')}  {text}[/]")


def line(outcome: Outcome, happened: Happened, lost: int) -> None:
    """A fault that is over, with what it cost until now."""
    where = "etcd" if happened.fault.is_store else happened.hit.host.name
    mark = "[red]✗[/]" if happened.failures else "[green]✓[/]"
    at = happened.began - outcome.began
    times = f"{happened.undone - happened.began:6.1f} s  repaired {happened.repair:6.2f} s"
    costs = f"{lost:4} lost" if lost else ""
    _console.print(f"{int(at) // 60:4}:{int(at) % 60:02} {mark} {happened.name:<20} {where:<4} {times} {costs}")
    for failure in happened.failures:
        _console.print(Text(f"        {failure}", style="red"))


def figures(outcome: Outcome) -> dict[str, Any]:
    """The run, as JSON."""
    lost = _lost(outcome)
    names = dict.fromkeys(happened.name for happened in outcome.each)
    return {
        "seed": outcome.options.seed,
        "minutes": outcome.options.minutes,
        "backends": outcome.options.backends,
        "seconds": round(outcome.ended - outcome.began, 1),
        "sent": outcome.sent,
        "lost": len(outcome.lost),
        "lost_without_fault": lost[NO_FAULT],
        "faults": {name: _figures_of(name, outcome, lost) for name in names},
        "growth": [asdict(growth) for growth in outcome.growths],
        "failures": list(outcome.all_failures()),
    }


def show(outcome: Outcome) -> None:
    """The table of all faults, what has grown, and the verdict."""
    found = figures(outcome)
    if outcome.each:
        table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("fault")
        for name in ("times", "lost", "allowed", "median repair", "slowest"):
            table.add_column(name, justify="right", no_wrap=True)
        for name, row in sorted(found["faults"].items()):
            times = (f"{row['repaired']:.2f} s", f"{row['slowest']:.2f} s")
            table.add_row(name, str(row["times"]), str(row["lost"]), row["allowed"], *times)
        _console.print()
        _console.print(table)
        faults = "1 fault" if len(outcome.each) == 1 else f"{len(outcome.each)} faults"
        _console.print(
            f"\n{faults} in {found['seconds'] / 60:.1f} min; {outcome.sent:,} pings, "
            f"{len(outcome.lost):,} lost, {found['lost_without_fault']} of them without a fault"
        )
        for name, row in found["faults"].items():
            if FAULTS[name].shows:
                _console.print(f"{name}: its effect was seen {row['seen']} of {row['times']} times")
        for name in ("descriptors", "threads", "mib"):
            if most := max(outcome.growths, key=lambda growth: getattr(growth, name), default=None):
                what = "MiB of memory" if name == "mib" else name
                beside = f", and {most.left:.0f} left by faults" if name == "mib" and most.left else ""
                grown = f"{getattr(most, name):+.0f} in {most.seconds:.0f} s{beside}"
                _console.print(f"largest growth, {what}: {grown}, {most.title}")
    failures = found["failures"]
    for failure in failures:
        _console.print(Text(f"✗ {failure}", style="red"), soft_wrap=True)
    if failures:
        _console.print(f"\nThe same faults again: {outcome.options.command}", soft_wrap=True)
    else:
        _console.print("[green]✓ no packet was lost that the table does not allow; every kernel is as desired[/]")


def _lost(outcome: Outcome) -> Counter[str]:
    causes = (blamed(outcome.each, lost) for lost in outcome.lost)
    return Counter(happened.name if happened else NO_FAULT for happened in causes)


def _figures_of(name: str, outcome: Outcome, lost: Counter[str]) -> dict[str, Any]:
    some = [happened for happened in outcome.each if happened.name == name and happened.right]
    times = [happened.repair for happened in some] or [0.0]
    return {
        "times": len(some),
        "lost": lost[name],
        "allowed": some[0].fault.loses.name.lower() if some else "",
        "repaired": round(median(times), 3),
        "slowest": round(max(times), 3),
        **({"seen": sum(bool(happened.hit.seen) for happened in some)} if FAULTS[name].shows else {}),
    }
