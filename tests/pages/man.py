"""`make man` writes deploy/man: man pages of the programs, from their help; and deploy/completion."""

import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from typing import Final

import click

from flannelette.services.ctl.main import SECTIONS
from flannelette.services.ctl.main import cli as cli
from tests.pages import completion
from tests.paths import ROOT

FOLDER: Final = ROOT / "deploy/man"
SERVICES: Final = ("lease", "dataplane", "masq", "cloud")
_DESCRIPTIONS: Final = {
    "lease": "which node holds which subnet of the overlay network",
    "dataplane": "carries pods' packets between the nodes",
    "cloud": "the routes of all nodes in a cloud's routing tables",
    "masq": "masquerade and forward rules of the overlay network",
}


def command_page() -> str:
    """flannelette.1."""
    return "\n".join(_command()) + "\n"


def service_page(name: str) -> str:
    """flannelette-NAME.8: what `--help` prints, as it is."""
    done = subprocess.run(
        [sys.executable, "-m", f"flannelette.services.{name}.main", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("FLANNEL")},
    )
    program = f"flannelette-{name}"
    said = map(_plain, (done.stdout or done.stderr).rstrip().splitlines())
    lines = [
        _title(program, 8),
        *_section("NAME", [f"{_plain(program)} \\- {_plain(_DESCRIPTIONS[name])}"]),
        *_section("DESCRIPTION", [".nf", ".in 2", *said, ".fi"]),
        *_section("SEE ALSO", [".BR flannelette (1)"]),
    ]
    return "\n".join(lines) + "\n"


def _command() -> Iterator[str]:
    yield _title("flannelette", 1)
    yield from _section("NAME", ["flannelette \\- " + _plain((cli.help or "").rstrip(".").lower())])
    yield from _section("SYNOPSIS", [".B flannelette", "[OPTIONS] COMMAND [ARGS]..."])
    yield from _section("OPTIONS", ["Every command takes these options, before or after its name.", *_options(cli)])
    for title, names in SECTIONS.items():
        yield f".SH {title.upper()}"
        for name in names:
            yield from _subcommand(name, cli.commands[name])
    yield from _section("NOTES", [".nf", *map(_plain, _unwrapped(cli.epilog or "")), ".fi"])
    yield from _section("SEE ALSO", [f".BR flannelette-{name} (8)" for name in SERVICES])


def _subcommand(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f".SS {_plain(' '.join([name, *command.collect_usage_pieces(context)[1:]]))}"
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        yield ".PP"
        yield _plain(" ".join(paragraph.split()))
    shared = {parameter.name for parameter in cli.params}
    yield from _options(command, without=shared)
    if examples := getattr(command, "examples", ()):
        yield from (".PP", "Examples:", ".nf", ".in +4", *map(_plain, examples), ".in -4", ".fi")
    if isinstance(command, click.Group):
        for inner, each in command.commands.items():
            yield from _subcommand(f"{name} {inner}", each)


def _options(command: click.Command, without: Collection[str | None] = ()) -> Iterator[str]:
    context = click.Context(command, info_name="flannelette")
    for parameter in command.params:
        if parameter.name not in without and (record := parameter.get_help_record(context)) and record[1]:
            yield ".TP"
            yield f".B {_plain(record[0])}"
            yield _plain(record[1])


def _unwrapped(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if line != "\b"]


def _title(program: str, section: int) -> str:
    return f'.TH {program.upper()} {section} "" Flannelette "Flannelette manual"'


def _section(title: str, lines: list[str]) -> Iterator[str]:
    yield f".SH {title}"
    yield from lines


def _plain(text: str) -> str:
    """The text, in which roff sees no command."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def pages() -> dict[str, str]:
    """The text of each file."""
    return {"flannelette.1": command_page(), **{f"flannelette-{name}.8": service_page(name) for name in SERVICES}}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each, text in pages().items():
        (FOLDER / each).write_text(text)
    completion.write()
