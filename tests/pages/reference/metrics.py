"""The tables of docs/metrics.md: what the services measure, from their sources, and the alerts on it.

`make pages` writes them.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from tests.pages.reference.tables import filled, table
from tests.paths import ROOT

PAGE: Final = ROOT / "docs/metrics.md"
_KINDS: Final = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "NumberCollector": "gauge"}
_IN_TEXT: Final = re.compile(r"^# HELP (flannelette_\w+) (.+)\n# TYPE \w+ (\w+)$", re.M)
_ROOMS: Final = {
    "every service": "runtime",
    "lease": "lease",
    "dataplane": "dataplane",
    "masq": "masq",
    "cloud": "cloud",
    "flanneld": "flanneld",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as Prometheus names it."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


def page() -> str:
    """The page as it should be."""
    return filled(PAGE, TABLES)


def metrics(room: str) -> list[Metric]:
    """Those that a package of services/ makes."""
    sources = [path.read_text() for path in sorted((ROOT / "services" / room).rglob("*.py"))]
    made = (each for text in sources if "flannelette_" in text for each in ast.walk(ast.parse(text)))
    found = [_metric(call) for call in made if isinstance(call, ast.Call) and _is_metric(call)]
    found += [
        Metric(name, kind, text, ("service",)) for source in sources for name, text, kind in _IN_TEXT.findall(source)
    ]
    return sorted(found, key=lambda metric: metric.name)


def _is_metric(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Name)
        and call.func.id in _KINDS
        and bool(call.args)
        and "flannelette_" in ast.unparse(call.args[0])
    )


def _metric(call: ast.Call) -> Metric:
    assert isinstance(call.func, ast.Name)
    name, meaning, *rest = (ast.literal_eval(each) for each in call.args[:3] if not isinstance(each, ast.Lambda))
    labels = rest[0] if rest else ()
    kind = _KINDS[call.func.id]
    ending = "_total" if kind == "counter" and not name.endswith("_total") else ""
    return Metric(name + ending, kind, meaning, (labels,) if isinstance(labels, str) else tuple(labels))


def _rows(room: str) -> Iterator[tuple[str, ...]]:
    for metric in metrics(room):
        yield (
            f"`{metric.name}`",
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.meaning.rstrip("."),
        )


def _alerts() -> Iterator[tuple[str, ...]]:
    rules = yaml.safe_load(Path(ROOT / "deploy/observability/rules.yaml").read_text())["groups"][0]["rules"]
    for rule in rules:
        description = " ".join(rule["annotations"]["description"].split())
        yield f"`{rule['alert']}`", rule["labels"]["severity"], rule.get("for", ""), _plain(description)


def _plain(text: str) -> str:
    """Without what Prometheus fills in."""
    return re.sub(r"\{\{ *\$labels\.(\w+) *\}\}", lambda label: label[1].upper(), text)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    **{
        name: partial(lambda room: table(("metric", "kind", "labels", "meaning"), _rows(room)), room)
        for name, room in _ROOMS.items()
    },
    "alerts": lambda: table(("alert", "severity", "after", "what to do"), _alerts()),
}


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
