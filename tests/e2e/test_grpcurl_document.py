"""docs/grpcurl.md: its commands print what it shows, with a real grpcurl and a running lab."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.document import Section, sections
from tests.e2e.reader import ROOT, Reader

PAGE = sections(ROOT / "docs/grpcurl.md")
SECTIONS = [section for section in PAGE if not section.needs("docker")]
COMPOSE = [section for section in PAGE if section.needs("docker")]


def compose_lab_runs() -> bool:
    """Whether a docker engine answers and has the hosts of deploy/compose."""
    if shutil.which("docker") is None:
        return False
    listing = ["docker", "ps", "--quiet", "--filter", "label=com.docker.compose.service=h1"]
    return bool(subprocess.run(listing, capture_output=True, check=False).stdout)


pytestmark = pytest.mark.skipif(shutil.which("grpcurl") is None, reason="grpcurl is not on the PATH: see make test")


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with tempfile.TemporaryDirectory(prefix="fl-") as home, Reader(Path(home), SECTIONS) as reader:
        yield reader


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_the_commands_under_a_heading_print_what_is_shown(section: Section, reader: Reader) -> None:
    reader.read(section)
    if section.needs("jq") and shutil.which("jq") is None:
        pytest.skip("the commands with jq were left out, because it is not installed")


@pytest.mark.skipif(not compose_lab_runs(), reason="no compose lab is running: see make compose-test")
@pytest.mark.parametrize("section", COMPOSE, ids=lambda section: section.title)
def test_the_commands_into_the_compose_lab_print_what_is_shown(section: Section, tmp_path: Path) -> None:
    names = next(block for part in PAGE for block in part.blocks if block.commands.startswith("at="))
    with Reader(tmp_path, [Section("", [names]), section]) as reader:
        reader.read(section)
