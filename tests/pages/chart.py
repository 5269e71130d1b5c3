"""deploy/helm/flannelette/README.md: the values of the chart in a table, from values.yaml and its comments.

`python -m tests.pages.chart` writes it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tests.paths import ROOT

CHART: Final = ROOT / "deploy" / "helm" / "flannelette"
README: Final = CHART / "README.md"
_HEAD: Final = """\
# The chart

Flannelette in a Kubernetes cluster, also in the place of flannel's own chart, whose values file it takes:
[docs/kubernetes.md](../../../docs/kubernetes.md#with-helm) says how. Helm refuses keys that are not here, and values
that mean nothing.

This page is made from `values.yaml`; `python -m tests.pages.chart` makes it again.

| value | default | |
|---|---|---|
"""
_KEY: Final = re.compile(r"(?P<indent> *)(?P<off># )?(?P<name>\w+):(?: (?P<default>.*?))?(?: # (?P<beside>.+))?")


@dataclass(frozen=True, slots=True)
class Value:
    """A key of values.yaml."""

    path: str
    default: str
    """As YAML; empty for one that has keys of its own, and for a text of several lines."""
    meaning: str
    """What the comments above and beside it say."""
    unset: bool
    """It is in a comment: without it the services have this default."""


def values() -> Iterator[Value]:
    """In their order; also those that are there as a comment only."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    above, parents, text = list[str](), list[str](), -1
    for line in (CHART / "values.yaml").read_text().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        if 0 <= text < depth or not line:
            above = []
            continue
        found, text = _KEY.fullmatch(line), -1
        path = [*parents[:depth], found["name"]] if found else []
        if found is None or (found["off"] and not _knows(schema, path)):
            above.append(line.strip().removeprefix("# "))
            continue
        default = found["default"] or ""
        if default == "|":
            default, text = "", depth
        yield Value(".".join(path), default, " ".join((*above, found["beside"] or "")).strip(), bool(found["off"]))
        above, parents = [], path


def _knows(schema: dict[str, Any], path: list[str]) -> bool:
    for name in path:
        schema = schema.get("properties", {}).get(name, {})
    return bool(schema)


def page() -> str:
    """In Markdown. A key that has others below it is a row if a comment says something of it."""
    rows = (each for each in values() if each.default or each.meaning)
    return _HEAD + "".join(
        f"| `{each.path}` | {f'`{each.default}`' if each.default else ''} | {each.meaning} |\n" for each in rows
    )


if __name__ == "__main__":
    README.write_text(page())
