"""Command lines become words as in a shell, and what a value says never becomes a word."""

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.formats.shell_words import expand_words, split_words

VARIABLES = {"SUBNET": "10.5.2.0/24", "PUBLIC_IP": "10.99.0.2", "EVIL": "a b; rm -rf '$SUBNET' `id`", "EMPTY": ""}


def words(command: str) -> list[str]:
    return expand_words(split_words(command, "SubnetAddCommand"), VARIABLES)


@pytest.mark.parametrize(
    "command",
    [
        "ip route add $SUBNET via $PUBLIC_IP",
        "a 'b c' \"d $SUBNET\" e\\ f",
        "x${SUBNET}y'$SUBNET'\"${PUBLIC_IP}\"",
        'a \'\' "" $EMPTY "$EMPTY" x$EMPTY',
        r'"a\"b\\c\$d\e" \$SUBNET \\',
        "sh -c 'read x; echo \"$x\" | cat && true'",
        "a\tb  c \n",
        'it costs 5$ "5$"',
        "a 'b\nc' d",
    ],
)
def test_words_are_those_of_a_shell(command: str) -> None:
    script = 'for word in "$@"; do printf "%s\\0" "$word"; done'
    said = subprocess.run(
        ["sh", "-c", f"set -- {command.strip()}\n{script}"], env=VARIABLES, capture_output=True, check=True
    ).stdout.decode()
    assert words(command) == said.split("\0")[:-1]


@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]))))
def test_quoted_words_come_back(texts: list[str]) -> None:
    assert words(shlex.join(["x", *texts])) == ["x", *texts]


def test_a_value_never_becomes_several_words() -> None:
    assert words("echo $EVIL") == ["echo", VARIABLES["EVIL"]]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("a 'b", "has a quote that does not end"),
        ('a "b', "has a quote that does not end"),
        ("a \\", "ends in a backslash"),
        ("a && b", "has && outside of single quotes, which needs a shell: write sh -c '...', or quote it"),
        ("a | b", "has | outside"),
        ("a > b", "has > outside"),
        ("a\nb", "has a line break outside"),
        ("a; b", "has ; outside"),
        ("a $(id)", r"has \$\( outside"),
        ('a "$(id)"', r"has \$\( outside"),
        ("a `id`", "has ` outside"),
        ("a ${SUBNET%/*}", r"has \$\{ outside"),
        ("a $1", r"has \$1 outside"),
        ("A=b c", "begins with an assignment"),
    ],
)
def test_what_only_a_shell_can_do_is_refused(command: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"^SubnetAddCommand {reason}"):
        words(command)
