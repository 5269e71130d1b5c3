"""docs/configuration.md: its tables are what the code says, and name all that the code reads."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from flannelette.services.core import network
from flannelette.services.core.backend_types import BACKEND_TYPES, declared_options
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.ctl.connect.contexts import DaemonSet, Place
from tests.pages.reference import since
from tests.pages.reference.configuration import (
    BACKENDS_PAGE,
    CONTEXT_KEYS,
    NETWORK_KEYS,
    PAGE,
    VARIABLES,
    backends_page,
    page,
)
from tests.paths import ROOT
from tests.upgrade.releases import COMMITS


def test_its_tables_are_what_the_code_says() -> None:
    """Other flags, options or words: `make pages`."""
    assert PAGE.read_text() == page()
    assert BACKENDS_PAGE.read_text() == backends_page()


def test_every_row_says_since_which_release_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one: `make pages` records the version in development."""
    monkeypatch.setattr(since, "FILE", tmp_path / "since.json")
    since.FILE.write_text('{"lease": {"--store": "0.1.0", "--gone": "0.1.0"}}')
    since.record({"lease": [("`--store`<br>`FLANNELD_STORE`", "x"), ("`--new`<br>`FLANNELD_NEW`", "y")]})
    assert since.recorded() == {"lease": {"--store": "0.1.0", "--new": since.in_development()}}
    rows = since.dated("lease", [("`--store`", "x"), ("`--unheard-of`", "y")], since.recorded())
    assert list(rows) == [("`--store`", "0.1.0", "x"), ("`--unheard-of`", "?", "y")]
    assert " | ? | " not in PAGE.read_text()


@pytest.mark.parametrize("name", sorted(BACKEND_TYPES))
def test_a_backend_and_its_options_say_since_which_release_they_are_there(name: str) -> None:
    backend = BACKEND_TYPES[name]
    declared = {backend.since, *(each.since or backend.since for each in declared_options(backend).values())}
    assert declared <= {*COMMITS, since.in_development()}


def test_every_key_that_the_network_configuration_is_asked_for_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set[str]()

    class Asked(GoObject):
        def _get(self, key: str, *rest: Any) -> Any:
            asked.add(key)
            return super()._get(key, *rest)

        def number(self, key: str, *rest: Any, **more: Any) -> int:
            asked.add(key)
            return super().number(key, *rest, **more)

        def object(self, key: str) -> GoObject | None:
            asked.add(key)
            return super().object(key)

    monkeypatch.setattr(network, "GoObject", Asked)
    both = '{"EnableIPv6": true, "Network": "10.5.0.0/16", "IPv6Network": "fd00::/48", "Backend": {"Type": "alloc"}'
    limits = (
        ("SubnetMin", "10.5.1.0"),
        ("SubnetMax", "10.5.9.0"),
        ("IPv6SubnetMin", "fd00::"),
        ("IPv6SubnetMax", "fd00::"),
    )
    network.parse_network(both + "".join(f', "{key}": "{value}"' for key, value in limits) + "}")
    assert asked == NETWORK_KEYS.keys()


def test_every_key_of_the_contexts_file_is_in_it() -> None:
    fields = (*dataclasses.fields(Place), *dataclasses.fields(DaemonSet))
    assert CONTEXT_KEYS.keys() == {field.name for field in fields} | {"kubernetes"}


def test_every_environment_variable_that_a_service_reads_is_in_it() -> None:
    read = set[str]()
    for path in (ROOT / "services").rglob("*.py"):
        read |= set(re.findall(r'environ(?:ment)?(?:\.get\(|\[)"([A-Z_]+)"', path.read_text()))
    read = {name for name in read if not name.startswith("FLANNELD_")} - {"PATH"}  # flags, too
    assert read <= VARIABLES.keys()
    assert VARIABLES.keys() <= read | {"XTABLES_LOCKFILE"}
