"""What is generated of the chart: README.md from values.yaml and its comments, and the options of backends.

These are declared in services/core/backend_types.py. `make pages` writes all files.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flannelette.services.core.backend_types import BACKEND_TYPES, Option, declared_options
from tests.paths import ROOT

CHART: Final = ROOT / "deploy" / "helm" / "flannelette"
README: Final = CHART / "README.md"
SCHEMA: Final = CHART / "values.schema.json"
OPTIONS: Final = CHART / "files" / "options.yaml"
_HEAD: Final = """\
# The chart

Flannelette in a Kubernetes cluster, also in the place of flannel's own chart, whose values file it takes:
[docs/kubernetes.md](../../../docs/kubernetes.md#with-helm) says how. Helm refuses keys that are not here, and values
that mean nothing.

This page is made from `values.yaml`; `make pages` makes it again.

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
    schema = json.loads(SCHEMA.read_text())
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


_OPTIONS_HEAD: Final = """\
# For each backend, which of its options are values of flannel's chart, and how they are called there. From the code:
# `make pages`.
"""
_BRANCHES: Final = re.compile(r'(?<=      "allOf": \[\n).*?(?=      \],\n)', re.S)


def options_file() -> str:
    """files/options.yaml as it should be."""
    rows = {name: {o.name: o.chart_value for o in options(name) if o.chart_value} for name in BACKEND_TYPES}
    shown = (f"{name}: {json.dumps(row)}\n".replace('"', "") for name, row in rows.items() if row)
    return _OPTIONS_HEAD + "".join(shown)


def options(backend: str) -> tuple[Option, ...]:
    """The options of a backend, those that Windows alone has last."""
    found = BACKEND_TYPES[backend]
    return (*declared_options(found).values(), *found.of_windows)


def schema() -> str:
    """values.schema.json as it should be: `backendOptions` of each backend are its options."""
    return _BRANCHES.sub(lambda _: ",\n".join(map(_branch, BACKEND_TYPES)) + "\n", SCHEMA.read_text())


def _branch(backend: str) -> str:
    rows = ",\n".join(f'            "{each.name}": {json.dumps(_schema_of(each))}' for each in options(backend))
    properties = f"{{\n{rows}\n          }}" if rows else "{}"
    return (
        f'        {{\n          "if": {{"properties": {{"backend": {{"const": "{backend}"}}}}}},\n'
        '          "then": {"properties": {"backendOptions": {"additionalProperties": false, "properties": '
        f"{properties}}}}}}}\n        }}"
    )


def _schema_of(option: Option) -> Mapping[str, object]:
    if option in OF_WINDOWS:
        return {}
    if isinstance(option.default, bool):
        return {"type": "boolean"}
    if isinstance(option.default, int):
        return {"type": "integer", "minimum": option.least, "maximum": option.most}
    if isinstance(option.default, tuple):
        return {"type": ["string", "array"], "items": {"type": "string"}}
    return {"enum": list(option.choices)} if option.choices else {"type": "string"}


OF_WINDOWS: Final = frozenset(each for backend in BACKEND_TYPES.values() for each in backend.of_windows)


def main() -> None:
    """Writes README, schema and options."""
    for path, text in ((SCHEMA, schema()), (OPTIONS, options_file()), (README, page())):
        path.write_text(text)
