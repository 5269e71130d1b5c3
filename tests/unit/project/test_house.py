"""What `make house` counts is counted rightly, and every package says what is in it. No figure is a limit."""

from tests import house


def test_every_package_says_what_is_in_it() -> None:
    assert house.unsigned() == []


def test_the_paths_of_the_architecture_page_are_counted() -> None:
    assert len(house.stops()) == 5


def test_a_chain_of_imports_counts_each_module_once() -> None:
    assert house.longest({"a": ["b", "x"], "b": ["c"], "c": []}) == 3
    assert house.longest({"a": ["b"], "b": ["a"]}) == 2
