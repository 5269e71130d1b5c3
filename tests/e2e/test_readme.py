"""docs/quickstart.md and README.md: what they tell a reader to type works, and what they show is what comes."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.lab_process import LabProcess, is_installed, lab
from tests.pages.document import Section, sections
from tests.pages.terminal import Terminal
from tests.paths import ROOT
from tests.patience import PATIENCE

QUICK_START = ROOT / "docs/quickstart.md"
LOOKS = (["leases"], ["peers"], ["rules"], ["resync", "--dry-run"], ["status"])


@pytest.fixture(scope="module")
def running() -> Iterator[LabProcess]:
    with tempfile.TemporaryDirectory(prefix="fl-") as home, lab(Path(home)) as process:
        process.until_printed("Ctrl-C ends the lab")
        yield process


def section(title: str, page: Path = QUICK_START) -> Section:
    return next(part for part in sections(page) if part.title == title)


def outline(text: str) -> list[list[str]]:
    """The words of each line; those with a digit in them vary."""
    return [["#" if re.search(r"\d", word) else word for word in line.split()] for line in text.strip().splitlines()]


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def as_typed(command: str, running: LabProcess) -> str:
    """The command of the page, for this lab and this Python."""
    ours = command.replace("/tmp/flannelette-$(id -u)", str(running.directory))  # noqa: S108 - the page's
    return re.sub(r"^flannelette\b", f"{sys.executable} -m flannelette.services.ctl.main", ours, flags=re.MULTILINE)


def test_the_lab_prints_what_the_page_shows(running: LabProcess) -> None:
    printed, _, _ = running.output.partition("From a second terminal")
    assert outline(printed) == outline(section("A cluster on this machine").blocks[0].shown)


def test_make_lab_is_there_until_ctrl_c(tmp_path: Path) -> None:
    if not is_installed():
        pytest.skip("`make lab` would install what is missing: make venv comes first")
    ((command,),) = [[block.commands for block in section("A cluster on this machine").blocks]]
    with (
        tempfile.TemporaryDirectory(prefix="fl-") as home,
        Terminal(command, ROOT, os.environ | {"TMPDIR": home}) as lab,
    ):
        lab.until_printed("Ctrl-C ends the lab")
        directory = Path(home, f"flannelette-{os.getuid()}")
        assert (directory / "h3" / "dataplane.sock").is_socket()
        lab.interrupt()
        assert "Traceback" not in lab.output
        assert "make: ***" not in lab.output
        assert not directory.exists()
    assert [line for line in run("ps", "-eo", "args").splitlines() if home in line] == []


def test_a_look_inside_works_as_printed(running: LabProcess) -> None:
    (block,) = section("Look inside").blocks
    printed = run("sh", "-ec", as_typed(block.commands, running))
    assert "h1 is healthy" in printed
    assert "2 of 2 programmed" in printed


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look[0])
def test_each_named_look_succeeds(look: list[str], running: LabProcess) -> None:
    assert f"`{look[0]}`" in QUICK_START.read_text()
    contexts = f"FLANNELETTE_CONTEXTS={running.directory}/contexts.toml"
    assert run("env", contexts, sys.executable, "-m", "flannelette.services.ctl.main", "--on", "h1", *look)


def test_the_front_page_has_the_two_labs_and_the_tests() -> None:
    (block,) = section("Try it", ROOT / "README.md").blocks
    commands = [line.split("  ")[0] for line in block.commands.splitlines()]
    assert commands == [
        section("A cluster on this machine").blocks[0].commands,
        "make compose-lab",
        "make test-quick",
    ]


def test_a_fault_is_found_and_cured(running: LabProcess) -> None:
    export = section("Look inside").blocks[0].commands.splitlines()[0]
    breaks, cures = (block.commands.splitlines() for block in section("Break something").blocks)

    def typed(line: str) -> str:
        ours = as_typed(f"{export}\n{line.replace('.venv/bin/python', sys.executable)}", running)
        done = subprocess.run(["sh", "-ec", ours], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout if done.returncode == 0 else ""

    def typed_until(line: str, words: str) -> None:
        end = time.monotonic() + PATIENCE
        while words not in (printed := typed(line)):
            assert time.monotonic() < end, f"{line}\n{printed}"

    change, look = breaks
    typed(change)
    typed_until(look, "dport 8472")
    change, look = cures
    typed(change)
    typed_until(look, "passed")
