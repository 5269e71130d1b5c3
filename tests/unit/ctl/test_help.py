"""The help of the command line: complete, and nothing cut off."""

import shlex

import pytest
from click.testing import CliRunner

from flannelette.services.ctl.cli.options import EXAMPLES, SECTIONS
from flannelette.services.ctl.main import cli


def lines_of(*words: str) -> list[str]:
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0
    return done.output.splitlines()


def test_the_list_names_every_command_once() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(cli.commands)


@pytest.mark.parametrize("command", ["", "certs", *(name for name in cli.commands if name != "flanneld")])
def test_no_line_is_cut_off_or_wider_than_a_terminal(command: str) -> None:
    _, *told = lines_of(*filter(None, [command]))
    assert [line for line in told if len(line) > 80 or line.endswith("...")] == []


@pytest.mark.parametrize("example", [each for examples in EXAMPLES.values() for each in examples])
def test_each_example_is_understood(example: str) -> None:
    words = shlex.split(example.removeprefix("sudo ").split(" | ")[0].split(" > ")[0])
    assert words[0] == "flannelette"
    cli.commands[words[1]].make_context(words[1], words[2:])
