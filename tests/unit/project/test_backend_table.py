"""The table of docs/backends.md is what was found, of the backends that are tried."""

from tests.kernel.dataplane.test_backends import BACKENDS
from tests.pages.backends import results, shown, table


def test_the_page_has_the_backends_that_are_tried_with_what_was_found() -> None:
    """Another backend: run its test with FLANNELETTE_BACKENDS, then `python -m tests.pages.backends`."""
    found = results()
    assert found.keys() <= BACKENDS.keys()
    assert shown() == table(found)


def test_what_was_found_is_what_is_tried() -> None:
    for name, row in results().items():
        sizes = {f"IPv{version}": size for version, size in BACKENDS[name].sizes.items()}
        assert (row["sizes"], row["flanneld"], row["lost"]) == (sizes, True, 0)
        assert row["sent"] > 0
