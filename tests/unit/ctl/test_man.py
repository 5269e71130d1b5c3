"""The man pages: of today's help, and without an error of roff."""

import shutil
import subprocess

import pytest

from tests.pages import man


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return man.pages()


def test_the_pages_of_the_package_are_the_help_of_today(pages: dict[str, str]) -> None:
    assert {path.name: path.read_text() for path in man.FOLDER.iterdir()} == pages, "make man writes them"


def test_roff_has_nothing_to_say_about_them(pages: dict[str, str]) -> None:
    groff = shutil.which("groff")
    if not groff:
        pytest.skip("there is no groff")
    for name, text in pages.items():
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-ww"], input=text, capture_output=True, text=True, check=True
        )
        assert (name, done.stderr) == (name, "")


def test_every_command_is_in_its_page(pages: dict[str, str]) -> None:
    for name in man.cli.commands:
        assert f"\n.SS {name}".replace("-", "\\-") in pages["flannelette.1"]
