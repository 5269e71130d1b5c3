"""What the firewall and its worker say to each other survives the way."""

from dataclasses import replace

import pytest

from services.masq.firewalls.messages import (
    ChainForm,
    ChainReport,
    CheckRequest,
    CheckResponse,
    Failure,
    Found,
    Hello,
    Message,
    RuleForm,
    decode,
    encode,
)

CHAIN = ChainForm(
    "filter",
    "FORWARD",
    "FLANNEL-FWD",
    RuleForm({"target": "FLANNEL-FWD"}, "-A FORWARD -j FLANNEL-FWD"),
    (RuleForm({"src": "!10.5.0.0/16", "target": {"MASQUERADE": {"random-fully": ""}}}, "-A ..."),),
)
REPORT = ChainReport(Found(True, 3, 2**40), (Found(False),), ("rule missing",), ("iptables -t filter ...",), False)


@pytest.mark.parametrize(
    "message",
    [
        Hello(True),
        Failure("no \u00e9 and no\nline end breaks a line"),
        CheckRequest((CHAIN, replace(CHAIN, rules=(), moved=True)), repair=True),
        CheckResponse((REPORT,)),
    ],
    ids=lambda message: message.kind,
)
def test_a_message_is_one_line_and_comes_back_as_it_was(message: Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"null", b'{"kind":"dance"}', b'{"kind":"check"}', b"\xff"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json and unicode raise their own kinds of it
        decode(line)
