"""Ctrl-C is how a lab ends: make has nothing to complain about.

Regression tests of hole 20.
"""

import os
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.lab_process import is_installed
from tests.pages.terminal import Terminal
from tests.paths import ROOT


@pytest.mark.parametrize("moment", ["hosts", "Ctrl-C ends the lab"])
def test_ctrl_c_ends_a_lab_without_an_error_of_make(moment: str) -> None:
    """The shell that make gives a recipe to would die of the signal, whatever the lab's exit code is."""
    if not is_installed():
        pytest.skip("`make lab` would install what is missing: make venv comes first")
    with (
        tempfile.TemporaryDirectory(prefix="fl-") as home,
        Terminal("make lab NODES=1", ROOT, os.environ | {"TMPDIR": home}) as lab,
    ):
        lab.until_printed(moment)
        lab.interrupt()
        _, _, after = lab.output.partition("^C")
        assert "teardown" in after
        assert "make:" not in after
        assert "Error" not in after
        assert not Path(home, f"flannelette-{os.getuid()}").exists()


def test_the_commands_that_stay_until_ctrl_c_take_the_place_of_makes_shell() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    staying = [target for text, target in pairwise(lines) if "until Ctrl-C" in text]
    assert [line.partition(":")[0] for line in staying] == ["lab", "compose-lab", "kube-lab"]
    assert all("@exec " in line for line in staying)
