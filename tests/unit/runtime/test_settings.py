"""Settings: Go's flag syntax, flannel's environment variables, and messages that name what is wrong."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.networks import socket_address
from flannelette.services.runtime.process.settings import (
    HelpRequested,
    ProcessSettings,
    flag,
    node_name,
    parse_settings,
    usage,
    variable_of,
)


@dataclass(frozen=True, kw_only=True)
class Example:
    iface: tuple[str, ...] = flag((), "May be repeated.")
    ip_masq: bool = flag(False, "A boolean.")
    forward: bool = flag(True, "A boolean that is on.", name="iptables-forward-rules")
    margin: int = flag(60, "A whole number.")
    interval: float = flag(1.5, "A number.")
    file: Path = flag(Path("/run/x"), "A path.")
    mode: str = flag("a", "A choice.", choices=("a", "b"))
    log_backtrace_at: str = flag("", "Keeps its underscores.", name="log_backtrace_at")


def parse(*arguments: str, **environment: str) -> Example:
    return parse_settings(Example, "program", arguments, environment)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Example()),
        (["-margin", "5"], Example(margin=5)),
        (["--margin=5"], Example(margin=5)),
        (["-margin=5", "--margin", "6"], Example(margin=6)),
        (["--margin=-5"], Example(margin=-5)),
        (["--margin", "-5"], Example(margin=-5)),
        (["-margin=0x10"], Example(margin=16)),
        (["-margin=020"], Example(margin=16)),
        (["-margin=0b1_0000", "--"], Example(margin=16)),
        (["--margin=+7"], Example(margin=7)),
        (["--iface="], Example(iface=("",))),
        (["--iface", "--ip-masq"], Example(iface=("--ip-masq",))),
        (["--interval=2"], Example(interval=2.0)),
        (["--file", "/a=b"], Example(file=Path("/a=b"))),
        (["--iface=eth0", "-iface", "eth1"], Example(iface=("eth0", "eth1"))),
        (["--iface=eth0,eth1"], Example(iface=("eth0,eth1",))),
        (["--mode=b"], Example(mode="b")),
        (["--mode="], None),
        (["--iptables-forward-rules=false"], Example(forward=False)),
        (["--log_backtrace_at=x:1"], Example(log_backtrace_at="x:1")),
    ],
)
def test_gos_syntax_is_understood(arguments: list[str], expected: Example | None) -> None:
    if expected is None:
        with pytest.raises(Misconfigured):
            parse(*arguments)
    else:
        assert parse(*arguments) == expected


@pytest.mark.parametrize("text", ["", "=true", "=1", "=t", "=T", "=TRUE", "=True"])
def test_a_boolean_is_true_in_all_of_gos_spellings(text: str) -> None:
    assert parse(f"--ip-masq{text}").ip_masq


@pytest.mark.parametrize("text", ["false", "0", "f", "F", "FALSE", "False"])
def test_a_boolean_is_false_in_all_of_gos_spellings(text: str) -> None:
    assert not parse(f"--iptables-forward-rules={text}").forward


def test_a_boolean_never_takes_the_next_word() -> None:
    with pytest.raises(Misconfigured, match="'false' is not a flag: write --ip-masq=false"):
        parse("--ip-masq", "false")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nonsense"], "there is no flag --nonsense"),
        (["--margin"], "--margin needs a value"),
        (["--margin=x"], "--margin is 'x': use a whole number"),
        (["--interval=x"], "--interval is 'x': use a number"),
        (["--ip-masq=yes"], "--ip-masq is 'yes': use true or false"),
        (["--mode=c"], "--mode is 'c': use one of a, b"),
        (["word"], "'word' is not a flag"),
        (["-"], "'-' is not a flag"),
        (["---margin=5"], "is not a flag"),
        (["-=5"], "is not a flag"),
        (["--margin=08"], "--margin is '08': use a whole number"),
        (["--margin= 8"], "--margin is ' 8': use a whole number"),
        (["--", "--margin=5"], "'--margin=5' is not a flag"),
        (["--=5"], "is not a flag"),
    ],
)
def test_a_wrong_flag_is_named_with_what_to_write(arguments: list[str], message: str) -> None:
    with pytest.raises(Misconfigured, match=message):
        parse(*arguments)


def test_the_environment_is_read_and_the_command_line_wins() -> None:
    environment = {"FLANNELD_MARGIN": "7", "FLANNELD_IP_MASQ": "true", "FLANNELD_IFACE": "a b,c"}
    assert parse(**environment) == Example(margin=7, ip_masq=True, iface=("a b,c",))
    assert parse("--margin=8", **environment).margin == 8
    assert parse("--iface=x", **environment).iface == ("x",)


def test_an_empty_variable_is_unset() -> None:
    assert parse(FLANNELD_MARGIN="", FLANNELD_IPTABLES_FORWARD_RULES="") == Example()


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(Misconfigured, match="FLANNELD_MARGIN is 'x'"):
        parse(FLANNELD_MARGIN="x")


def test_variables_are_named_as_flannel_names_them() -> None:
    assert variable_of("etcd-endpoints") == "FLANNELD_ETCD_ENDPOINTS"
    assert variable_of("log_backtrace_at") == "FLANNELD_LOG_BACKTRACE_AT"


@pytest.mark.parametrize("word", ["-h", "--h", "-help", "--help"])
def test_help_lists_every_flag_with_its_default(word: str) -> None:
    with pytest.raises(HelpRequested) as caught:
        parse("--margin=5", word)
    text = str(caught.value)
    assert "--iptables-forward-rules\n" in text
    assert "A whole number. (default 60)" in text
    assert "A boolean that is on. (default true)" in text
    assert "One of a, b." in text
    assert max(map(len, usage("program", Example).splitlines())) <= 80


def test_the_node_is_the_flag_else_the_variable_else_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "HOST.example")
    assert node_name(ProcessSettings(node="a"), {"NODE_NAME": "b"}) == "a"
    assert node_name(ProcessSettings(), {"NODE_NAME": "b"}) == "b"
    assert node_name(ProcessSettings(), {"NODE_NAME": ""}) == "host.example"


def test_each_service_has_its_socket() -> None:
    assert socket_address(Path("/run/flannelette"), "masq") == "unix:/run/flannelette/masq.sock"
