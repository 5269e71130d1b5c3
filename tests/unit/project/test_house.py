"""The limits of the source tree that `make house` prints: no folder, file or chain of imports grows beyond them.

A row of a table here is over its limit today, and may only shrink; whoever ends that removes the row.
"""

from typing import Final

import pytest

from tests import house

MOST_LINES: Final = 55_200
"""In services/: down with it whenever much has gone. Room for imports, and archives of hosts that hang, came last."""
LARGE_FOLDERS: Final[dict[str, int]] = {}
DEEP_SERVICES: Final = {"dataplane": 12}
MOST_SMALL: Final = 8
"""Short modules with one importer; seams (a protocol, a pure table) among them stay."""


def test_the_services_do_not_grow() -> None:
    assert sum(house.lines_of("services").values()) <= MOST_LINES


def test_a_folder_has_at_most_a_dozen_modules() -> None:
    large = {name: n for name, n in house.folder_sizes().items() if n > LARGE_FOLDERS.get(name, house.MOST_MODULES)}
    assert large == {}


def test_a_file_has_at_most_300_lines() -> None:
    lines = house.lines_of("services")
    assert {name: n for name, n in lines.items() if n > house.LONG} == {}


def test_short_modules_with_one_importer_are_few() -> None:
    small = house.small_modules(house.lines_of("services"))
    assert len(small) <= MOST_SMALL, small


def test_every_package_says_what_is_in_it() -> None:
    assert house.unsigned() == []


@pytest.mark.parametrize("service", house.SERVICES)
def test_imports_inside_a_service_are_not_deeper(service: str) -> None:
    assert house.levels(service) <= DEEP_SERVICES.get(service, house.MOST_LEVELS)


def test_the_paths_of_the_architecture_page_are_counted() -> None:
    assert len(house.stops()) == 5


def test_a_chain_of_imports_counts_each_module_once() -> None:
    assert house.longest({"a": ["b", "x"], "b": ["c"], "c": []}) == 3
    assert house.longest({"a": ["b"], "b": ["a"]}) == 2
