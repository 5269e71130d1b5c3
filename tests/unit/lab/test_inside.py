"""Which lab a shell is for."""

from pathlib import Path

import pytest

from lab.inside import Lab, NoWayIn, chosen

FIRST, SECOND = (Lab(Path("/tmp", name), ("nsenter",)) for name in ("a", "b"))  # noqa: S108 - not opened


def test_the_only_one_or_the_one_that_the_environment_names() -> None:
    assert chosen([FIRST], {}) == FIRST
    assert chosen([FIRST], {"FLANNELETTE_CONTEXTS": "/etc/mine.toml"}) == FIRST
    assert chosen([FIRST, SECOND], {"FLANNELETTE_CONTEXTS": str(SECOND.contexts)}) == SECOND


def test_none_or_several_are_told_with_what_to_do() -> None:
    with pytest.raises(NoWayIn, match=r"^no lab runs: start one in another terminal with `make lab`$"):
        chosen([], {})
    with pytest.raises(NoWayIn, match=r"^several labs run: .*=/tmp/a/contexts.toml or .*=/tmp/b/contexts.toml$"):
        chosen([FIRST, SECOND], {})
