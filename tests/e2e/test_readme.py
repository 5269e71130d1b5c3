"""README.md: what it tells a reader to type works, and what it shows is what comes."""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.document import Section, sections
from tests.e2e.lab_process import LabProcess, lab

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LOOKS = (["leases"], ["peers"], ["rules"], ["resync", "--dry-run"], ["status"])


@pytest.fixture(scope="module")
def running() -> Iterator[LabProcess]:
    with tempfile.TemporaryDirectory(prefix="fl-") as home, lab(Path(home)) as process:
        process.until_printed("Ctrl-C ends the lab")
        yield process


def section(title: str) -> Section:
    return next(part for part in sections(ROOT / "README.md") if part.title == title)


def outline(text: str) -> list[list[str]]:
    """The words of each line; those with a digit in them vary."""
    return [["#" if re.search(r"\d", word) else word for word in line.split()] for line in text.strip().splitlines()]


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def as_typed(command: str, running: LabProcess) -> str:
    """The command of the page, for this lab and this Python."""
    return command.replace("/tmp/flannelette-$(id -u)", str(running.directory)).replace(  # noqa: S108 - the page's
        ".venv/bin/flannelette", f"{sys.executable} -m services.ctl.main"
    )


def test_the_lab_prints_what_the_page_shows(running: LabProcess) -> None:
    printed, _, _ = running.output.partition("From a second terminal")
    assert outline(printed) == outline(section("Try it").blocks[0].shown)


def test_a_look_inside_works_as_printed(running: LabProcess) -> None:
    status, grpcurl = as_typed(section("Look inside").blocks[0].commands, running).split("grpcurl ")
    assert run("sh", "-c", status).startswith("h1 is healthy")
    if shutil.which("grpcurl") is None:
        pytest.skip("grpcurl is not on the PATH: see make test")
    assert run("sh", "-c", f"grpcurl {grpcurl}").count("PEER_STATE_PROGRAMMED") == 2


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look[0])
def test_each_named_look_succeeds(look: list[str], running: LabProcess) -> None:
    assert f"`{look[0]}`" in README
    sockets = ("--socket-dir", f"{running.directory}/h1", "--lease", f"{running.directory}/lease/lease.sock")
    assert run(sys.executable, "-m", "services.ctl.main", *sockets, *look)


def test_every_make_target_of_the_page_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", README)) <= targets
    assert {line.split()[1] for line in section("Try it").blocks[0].commands.splitlines()} <= targets


def test_the_services_know_the_flags_that_the_page_gives_them() -> None:
    lines = [line for line in section("Run it on a host").blocks[0].commands.splitlines() if "flannelette-" in line]
    assert len(lines) == 3
    for line in lines:
        program, *words = line.split()
        usage = run(sys.executable, "-m", f"services.{program.removeprefix('flannelette-')}.main", "--help")
        assert [word for word in words if word.startswith("--") and word not in usage] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_exists(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []
