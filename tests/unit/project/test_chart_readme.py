"""What is generated of the chart: the README is what values.yaml says now, and the schema has every option."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from flannelette.services.core.backend_types import BACKEND_TYPES
from tests.pages.chart import CHART, OPTIONS, README, SCHEMA, options_file, page, schema, values


def test_it_is_what_values_yaml_says() -> None:
    """Other values or comments: `make pages`."""
    assert README.read_text() == page()


def test_the_options_of_backends_are_those_of_the_code() -> None:
    """Other options: `make pages`."""
    assert SCHEMA.read_text() == schema()
    assert OPTIONS.read_text() == options_file()


def test_its_defaults_are_those_that_helm_reads() -> None:
    read = yaml.safe_load((CHART / "values.yaml").read_text())
    for value in values():
        if value.default and not value.unset:
            found = read
            for name in value.path.split("."):
                found = found[name]
            assert yaml.safe_load(value.default) == found, value.path


def test_every_key_that_helm_accepts_is_in_it() -> None:
    shown = re.findall(r"^\| `([\w.]+)` \|", README.read_text(), re.M)
    keys = accepted(json.loads((CHART / "values.schema.json").read_text()))
    missing = (
        key
        for key in keys
        if not any(f"{a}.".startswith(f"{b}.") for each in shown for a, b in ((key, each), (each, key)))
    )
    assert list(missing) == []


def accepted(schema: dict[str, Any], where: str = "") -> Iterator[str]:
    """Keys that have none below them."""
    for name, below in schema.get("properties", {}).items():
        yield from accepted(below, f"{where}{name}.")
    if "properties" not in schema:
        yield where.rstrip(".")


def test_it_names_every_backend_that_is_built_and_says_of_each_option_which_takes_it() -> None:
    meanings = {value.path: value.meaning for value in values()}
    sentence = re.sub(r"\([^)]*\)", "", meanings["flannel.backend"]).partition(".")[0]
    assert set(re.findall(r"[\w-]+", sentence)) - {"or"} == BACKEND_TYPES.keys()
    options = [value for value in values() if value.unset and "no effect" not in value.meaning]
    assert len(options) == 11
    for option in options:
        assert set(re.findall(r"[\w-]+", option.meaning)) & BACKEND_TYPES.keys(), option.path
