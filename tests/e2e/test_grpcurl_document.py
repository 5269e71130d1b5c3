"""docs/grpcurl.md: its commands print what it shows, with a real grpcurl and a running lab.

Those that go into the compose lab are in tests/compose.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clouds.process import cloud_python
from tests.pages.document import Section, sections
from tests.pages.reader import Reader
from tests.paths import ROOT
from tests.tools import find_tool

SECTIONS = [section for section in sections(ROOT / "docs/grpcurl.md") if not section.needs("docker")]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    find_tool("grpcurl")
    with tempfile.TemporaryDirectory(prefix="fl-") as home, Reader(Path(home), SECTIONS) as reader:
        yield reader


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_the_commands_under_a_heading_print_what_is_shown(section: Section, reader: Reader) -> None:
    if any("BACKEND=aws-vpc" in block.words for block in section.blocks):
        cloud_python()  # skipped where it is missing; no section follows that needs its lab
    reader.read(section)
    if section.needs("jq") and shutil.which("jq") is None:
        pytest.skip("the commands with jq were left out, because it is not installed")
