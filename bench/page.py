"""Table and plot of docs/performance.md, from stored results: pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bench.plot import Line, plot

Stored: TypeAlias = Mapping[str, Any]
"""One entry of docs/performance.json."""
_TABLE: Final = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
_BESIDE: Final = re.compile(r"(?<=<!-- beside flanneld -->\n).*?(?=<!-- end of table -->)", re.DOTALL)
_LIMIT: Final = "bare send of our messages, encoded before"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a figure of a bench, at each size."""

    words: str
    bench: str
    figure: Callable[[Stored], float | None]
    unit: str


def _ours(factor: float = 1.0) -> Callable[[Stored], float]:
    return lambda result: float(result["ours"]) * factor


def _figure(name: str, factor: float = 1.0) -> Callable[[Stored], float | None]:
    return lambda result: float(result[name]) * factor if name in result else None


def _peer(part: str) -> Callable[[Stored], float | None]:
    return lambda result: next((seconds for name, seconds in result["peers"].items() if part in name), None)


def _limit(result: Stored) -> float | None:
    limit = result.get("limits", {}).get(_LIMIT)
    return None if limit is None else float(limit)


ROWS: Final = (
    Row("**Cold start**, from exec of both services", "cold_start", _ours(), "s"),
    Row("with 2 ms to etcd", "cold_start", _figure("with_delay_seconds"), "s"),
    Row("CPU, lease service", "cold_start", _figure("lease_cpu_seconds"), "s"),
    Row("CPU, dataplane", "cold_start", _figure("dataplane_cpu_seconds"), "s"),
    Row("etcdctl, a script, `ip -batch`, our shape", "cold_start", _peer("a metric per subnet"), "s"),
    Row("etcdctl, a script, `ip -batch`, flannel's", "cold_start", _peer("metric 0"), "s"),
    Row("**Its netlink part alone**", "cold_start_netlink", _ours(), "s"),
    Row("bare `send` of the same, the limit", "cold_start_netlink", _limit, "s"),
    Row("times the limit, in CPU", "cold_start_netlink", _figure("times_the_limit_cpu"), ""),
    Row("`ip -batch`, our shape", "cold_start_netlink", _peer("a metric per subnet"), "s"),
    Row("`ip -batch`, flannel's shape", "cold_start_netlink", _peer("metric 0"), "s"),
    Row("pyroute2's calls", "cold_start_netlink", _peer("pyroute2"), "s"),
    Row("**One put until its route**, p50", "event_latency", _figure("p50_ms"), "ms"),
    Row("p95", "event_latency", _figure("p95_ms"), "ms"),
    Row("p99", "event_latency", _figure("p99_ms"), "ms"),
    Row("one delete, p50", "event_latency", _figure("delete_p50_ms"), "ms"),
    Row("etcd3 and pyroute2, p50", "event_latency", _peer("etcd3"), "ms"),
    Row("**1,000 puts at once**, after the last", "burst", _ours(), "ms"),
    Row("routes lost", "burst", _figure("lost"), ""),
    Row("etcd3 and pyroute2", "burst", _peer("etcd3"), "ms"),
    Row("**Changes all the time**, p50", "churn", _figure("p50_ms"), "ms"),
    Row("p99", "churn", _figure("p99_ms"), "ms"),
    Row("changes a second", "churn", lambda result: float(result["parameters"]["rate"]), ""),
    Row("routes lost", "churn", _figure("lost"), ""),
    Row("lease service, of a core", "churn", _figure("lease_percent_of_a_core"), "%"),
    Row("dataplane, of a core", "churn", _figure("dataplane_percent_of_a_core"), "%"),
    Row("**A comparison that finds nothing**, CPU", "resync", _ours(), "ms"),
    Row("`ip` and `bridge` that only list", "resync", _peer("ip and bridge"), "ms"),
    Row("pyroute2 that only lists", "resync", _peer("pyroute2"), "ms"),
    Row("dataplane idle, with its audits, of a core", "resync", _figure("dataplane_idle_with_audit_percent"), "%"),
    Row("lease service idle, of a core", "resync", _figure("lease_idle_percent"), "%"),
    Row("child processes", "resync", _figure("children"), ""),
    Row("memory of the dataplane", "resync", _figure("dataplane_mib"), "MiB"),
    Row("memory of the lease service", "resync", _figure("lease_mib"), "MiB"),
    Row("**Killed and started again**, until ready", "restart", _ours(), "s"),
    Row("routes that changed", "restart", _figure("lost"), ""),
)


@dataclass(frozen=True, slots=True)
class Beside:
    """A line of the table beside flanneld: a figure of the bench `flanneld` at one size; less is better."""

    words: str
    peers: int
    figure: str
    unit: str


CONTENDERS: Final = ("flanneld", "one", "three")
"""Prefixes of the figures of each contender, in the order of the columns."""
BESIDE: Final = (
    Beside("**Start** until ready, no leases", 1, "ready_seconds", "s"),
    Beside("**Cold start**, until the last of 1,000 routes", 1_000, "cold_start_seconds", "s"),
    Beside("of 5,000", 5_000, "cold_start_seconds", "s"),
    Beside("of 10,000", 10_000, "cold_start_seconds", "s"),
    Beside("**Killed and started again**, 10,000 leases, until a new route", 10_000, "restart_new_seconds", "s"),
    Beside("until a stale route is gone", 10_000, "restart_stale_seconds", "s"),
    Beside("**1,000 puts at once** among 1,000 leases, until the last route", 1_000, "burst_seconds", "s"),
    Beside("routes lost", 1_000, "burst_lost", ""),
    Beside("**One put until its route**, 1,000 leases, 250 ms apart, p50", 1_000, "put_p50_ms", "ms"),
    Beside("p95", 1_000, "put_p95_ms", "ms"),
    Beside("10 ms apart, p50", 1_000, "warm_put_p50_ms", "ms"),
    Beside("p95", 1_000, "warm_put_p95_ms", "ms"),
    Beside("CPU of such a put", 1_000, "put_cpu_ms", "ms"),
    Beside("**At rest**, 1,000 silent nodes, CPU a minute", 1_000, "idle_cpu_seconds_a_minute", "s"),
    Beside("**Memory**, no leases", 1, "memory_mib", "MiB"),
    Beside("1,000 leases", 1_000, "memory_mib", "MiB"),
    Beside("10,000 leases", 10_000, "memory_mib", "MiB"),
)

LINES: Final = (
    Line("ours, from exec of both services", "cold_start", _ours(), "#c2410c"),
    Line("ours, netlink part", "cold_start_netlink", _ours(), "#ea580c"),
    Line("bare send, the limit", "cold_start_netlink", _limit, "#9ca3af"),
    Line("ip -batch, our shape", "cold_start_netlink", _peer("a metric per subnet"), "#2563eb"),
    Line("ip -batch, flannel's shape", "cold_start_netlink", _peer("metric 0"), "#1e3a8a"),
    Line("pyroute2's calls", "cold_start_netlink", _peer("pyroute2"), "#15803d"),
)


def render(page: str, stored: Stored) -> tuple[str, str]:
    """The page with the tables of these results, and the plot as SVG."""
    text = _TABLE.sub(lambda _: table(stored), page, count=1)
    text = _BESIDE.sub(lambda _: beside(stored), text, count=1)
    return text, plot(LINES, stored["results"], f"Seconds until N peers are in the kernel ({stored['machine']})")


def beside(stored: Stored) -> str:
    """Markdown: a row a figure, a column a contender, and how many times better than flanneld each of ours is."""
    found = {result["parameters"]["peers"]: result for result in stored["results"] if result["name"] == "flanneld"}
    lines = ["| | flanneld | one process | three services | | times better |", "|---|--:|--:|--:|---|--:|"]
    for row in BESIDE:
        figures = [found.get(row.peers, {}).get(f"{who}_{row.figure}") for who in CONTENDERS]
        cells = ["never" if figure is None else number(figure) for figure in figures]
        theirs = figures[0]
        ratios = [number(theirs / ours) for ours in figures[1:] if theirs and ours]
        lines.append(f"| {row.words} | {' | '.join(cells)} | {row.unit} | {', '.join(ratios)} |")
    return "\n".join((*lines, "", ""))


def table(stored: Stored) -> str:
    """Markdown: a row a figure, a column a size."""
    results = [result for result in stored["results"] if result["name"] != "flanneld"]
    sizes = sorted({result["parameters"]["peers"] for result in results})
    lines = [
        f"Measured with {stored['machine']}.",
        "",
        "| peers |" + "".join(f" {size:,} |" for size in sizes) + " |",
        "|---|" + "--:|" * len(sizes) + "---|",
    ]
    for row in ROWS:
        cells = [_cell(row, size, results) for size in sizes]
        lines.append(f"| {row.words} |" + "".join(f" {cell} |" for cell in cells) + f" {row.unit} |")
    return "\n".join((*lines, "", ""))


def _cell(row: Row, size: int, results: Iterable[Stored]) -> str:
    for result in results:
        if result["name"] == row.bench and result["parameters"]["peers"] == size:
            value = row.figure(result)
            return "" if value is None else number(value)
    return ""


def number(value: float) -> str:
    """Prints a number with as few digits as tell it: three, and none behind the point that say nothing."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
