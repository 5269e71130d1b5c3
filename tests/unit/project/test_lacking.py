"""What a test does on a machine that lacks a program."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.vm import GUEST_MARK
from tests.charon import real as charon
from tests.flannel import real as flannel
from tests.tools import find_tool


@pytest.fixture(params=[charon.require_charon, flannel.require_flanneld, lambda: find_tool("missing")])
def require(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], object]:
    """Asks for a program that this machine does not have."""
    monkeypatch.setattr("tests.tools.CACHE", tmp_path)
    monkeypatch.setattr("tests.charon.real.find_charon", str)
    monkeypatch.setenv("PATH", str(tmp_path))
    asks: Callable[[], object] = request.param
    return asks


def test_it_is_skipped_and_says_what_is_missing(require: Callable[[], object]) -> None:
    with pytest.raises(pytest.skip.Exception, match="there is no "):
        require()


def test_in_the_vm_it_fails_for_the_vm_is_started_to_have_it(
    require: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GUEST_MARK, "1")
    with pytest.raises(pytest.fail.Exception, match="there is no "):
        require()
