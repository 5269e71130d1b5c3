"""The help of the command line: complete, and nothing cut off."""

import shlex

import click
import pytest
from click.testing import CliRunner

from flannelette.services.ctl.main import LIST, cli


def lines_of(*words: str) -> list[str]:
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0
    return done.output.splitlines()


@pytest.mark.parametrize("name", LIST)
def test_the_list_has_the_first_sentence_of_each_command(name: str) -> None:
    assert LIST[name].get_short_help_str(200) == cli.commands[name].get_short_help_str(200)


@pytest.mark.parametrize("command", ["", "certs", *(name for name in cli.commands if name != "flanneld")])
def test_no_line_is_cut_off_or_wider_than_a_terminal(command: str) -> None:
    _, *told = lines_of(*filter(None, [command]))
    assert [line for line in told if len(line) > 80 or line.endswith("...")] == []


@pytest.mark.parametrize(
    "example", [each for command in cli.commands.values() for each in getattr(command, "examples", ())]
)
def test_each_example_is_understood(example: str) -> None:
    words = shlex.split(example.removeprefix("sudo ").split(" | ")[0].split(" > ")[0])
    assert words[0] == "flannelette"
    cli.commands[words[1]].make_context(words[1], words[2:])


@pytest.mark.parametrize("command", sorted(cli.commands.keys() - {"flanneld"}))
def test_the_options_of_every_command_are_told_once(command: str) -> None:
    told = "\n".join(lines_of(command))
    assert not [option for option in ("--socket-dir", "--tls-ca-file", "--context NAME") if option in told]
    takes_them = any(parameter.name == "socket_dir" for parameter in cli.commands[command].params)
    assert ("`flannelette help options`" in told) == takes_them


def test_help_options_has_them_all_and_where_else_they_come_from() -> None:
    done = CliRunner().invoke(cli, ["help", "options"])
    shared = [option for each in cli.params if isinstance(each, click.Option) for option in each.opts]
    assert done.exit_code == 0
    assert [each for each in shared if each not in done.output and each != "--version"] == []
    assert "FLANNELETTE_SOCKET_DIR" in done.output
    assert not [line for line in done.output.splitlines() if len(line) > 80]


@pytest.mark.parametrize("words", [("status",), ("masq", "diff"), ("certs", "ca"), ()])
def test_help_of_a_command_is_what_the_command_says_of_itself(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["help", *words], prog_name="flannelette")
    assert done.output == CliRunner().invoke(cli, [*words, "--help"], prog_name="flannelette").output
    assert CliRunner().invoke(cli, ["help", *words, "nothing"]).exit_code == 2
