"""The file of contexts: what it names, and what it says of a mistake."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured
from tests.ctl.commands import address_of_any, addresses, run

LAB = """
current = "lab"
[lab]
lease = "/run/lab/central.sock"
[lab.nodes.h1]
socket_dir = "/run/lab/h1"
[lab.nodes.h2]
socket_dir = "/run/lab/h2"
lease = "10.0.0.2:9471"
[far]
dataplane = "10.0.0.9:9472"
"""


@pytest.fixture(autouse=True)
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "contexts.toml"
    path.write_text(LAB)
    monkeypatch.setenv("FLANNELETTE_CONTEXTS", str(path))
    return path


def test_the_current_context_names_the_nodes_and_what_they_share() -> None:
    assert addresses() == {
        "h1": ["unix:/run/lab/central.sock", "unix:/run/lab/h1/dataplane.sock", "unix:/run/lab/h1/masq.sock"],
        "h2": ["10.0.0.2:9471", "unix:/run/lab/h2/dataplane.sock", "unix:/run/lab/h2/masq.sock"],
    }


def test_one_node_of_the_context() -> None:
    assert [*addresses(on="h2")] == ["h2"]


def test_an_address_that_is_given_means_this_node_unless_a_context_is_given_too() -> None:
    assert addresses(socket_dir="/run/mine") == {
        "": [f"unix:/run/mine/{name}.sock" for name in ("lease", "dataplane", "masq")]
    }
    assert addresses(context="lab", on="h2", lease="10.0.0.7:1")["h2"][0] == "10.0.0.7:1"


def test_a_context_without_nodes_is_one_node() -> None:
    assert addresses(context="far")[""][1] == "10.0.0.9:9472"


def test_without_a_file_there_is_this_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLANNELETTE_CONTEXTS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert addresses()[""][0] == "unix:/run/flannelette/lease.sock"


def test_a_command_about_one_node_asks_which() -> None:
    assert "Give --on NODE, one of: h1, h2" in run("resync").output
    assert address_of_any("masq") == "unix:/run/lab/h1/masq.sock"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": "lap"}, "no context 'lap'.*it has: lab, far"),
        ({"on": "h3"}, "the context lab has no node 'h3'; it has: h1, h2"),
        ({"on": "h1", "socket_dir": "/run"}, "give --context, one of: lab, far"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_those_that_are(options: dict[str, str], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        addresses(**options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[lab", "cannot read the contexts"),
        ('current = "x"', "no context 'x'.*it has: none"),
        ("current = 1", 'write current = "NAME"'),
        ("lab = 1", r"lab is no context: write \[lab\]"),
        ('[lab]\nsocket = "/x"', "there is no key 'socket'; keys are socket_dir, lease"),
        ("[lab]\nsocket_dir = 1", 'write socket_dir = "TEXT"'),
        ('[lab]\nlease = "nowhere"', "'nowhere' is not an address"),
        ("[lab]\nnodes = 1", r"write \[lab.nodes.NODE\]"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(contexts: Path, text: str, words: str) -> None:
    contexts.write_text(text)
    with pytest.raises(Misconfigured, match=words):
        addresses()
    assert run("context", "list").exit_code == 2


def test_another_context_is_made_the_current_one_and_the_rest_of_the_file_stays(contexts: Path) -> None:
    assert run("context", "use", "far").exit_code == 0
    assert contexts.read_text() == LAB.replace('current = "lab"', "").replace("\n\n", 'current = "far"\n\n', 1)
    assert [*addresses()] == [""]
    assert "it has: lab, far" in run("context", "use", "near").output


def test_contexts_are_listed_and_used_by_a_command(contexts: Path) -> None:
    assert run("context", "use", "far").exit_code == 0
    listed = run("context", "list").output.splitlines()
    assert [line.split() for line in listed] == [
        ["CONTEXT", "CURRENT", "NODES"],
        ["lab", "-", "h1,", "h2"],
        ["far", "yes", "-"],
    ]
    assert "it has: lab, far" in run("context", "use", "x").output


def test_the_file_is_in_the_directory_of_configurations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLANNELETTE_CONTEXTS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "flannelette").mkdir()
    (tmp_path / "flannelette" / "contexts.toml").write_text(LAB)
    assert [*addresses()] == ["h1", "h2"]


def test_where_the_lab_of_the_shell_has_ended_no_command_is_about_this_host(contexts: Path) -> None:
    contexts.unlink()
    for words in (["status"], ["--on=h1", "peers"], ["--context=lab", "--socket-dir=/run/mine", "status"]):
        ran = run(*words)
        assert (ran.exit_code, f"names {contexts}, which is not there" in ran.output) == (2, True), ran.output
    assert [*addresses(socket_dir="/run/mine")] == [""]


def test_there_a_command_whose_own_option_names_its_service_is_about_that_one(contexts: Path) -> None:
    contexts.unlink()
    words = ["cloud", "status", "--address=127.0.0.1:1"]
    reaches_it = "no answer at 127.0.0.1:1: is flannelette-cloud running there"
    assert reaches_it in run(*words).output
    assert reaches_it in run(*words[:2], environment={"FLANNELETTE_CLOUD": "127.0.0.1:1"}).output
    assert "which is not there" in run("--context=lab", *words).output
    assert "which is not there" in run(*words[:2]).output


def test_a_file_that_cannot_be_looked_for_is_told_as_one_that_cannot_be_read(
    contexts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLANNELETTE_CONTEXTS", f"{contexts.parent}/{'x' * 256}")  # EACCES is none for root
    ran = run("status")
    assert (ran.exit_code, "Error: cannot read the contexts in" in ran.output) == (2, True), ran.output


def test_a_network_whose_name_is_none_is_refused_before_any_socket_is_looked_for() -> None:
    ran = run("--socket-dir=/run/mine", "--network=../blue", "status")
    assert (ran.exit_code, "a network's name has 1 to 15" in ran.output) == (2, True), ran.output
