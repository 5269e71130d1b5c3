"""What the command line answers where it once answered with a traceback, with nothing, or with "healthy".

Regression tests of hole 20.
"""

import json
from pathlib import Path

import pytest

from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run

ASCII = ("env", "LC_ALL=C", "PYTHONCOERCECLOCALE=0", "PYTHONUTF8=0")
"""An encoding without letters beyond ASCII, from which Python does not escape by itself."""


@pytest.mark.parametrize(
    "address", ["127.0.0.1:99999", ":7070", "h1:", "[::1]:99999", "[::1", "::1:7070", "unix:", "h1:7070:1", "h 1:70"]
)
async def test_what_is_no_address_is_said_in_one_line(tmp_path: Path, address: str) -> None:
    for option in ("--lease", "--dataplane", "--masq"):
        ran = await run(tmp_path, option, address, "leases")
        assert (ran.code, ran.out) == (2, "")
        assert "Traceback" not in ran.err
        assert f"{address!r} is not an address: write unix:PATH, a path with a slash, or HOST:PORT" in ran.err


async def test_an_explanation_in_a_pipe_has_the_characters_of_the_rule_and_no_others(node: FakeNode) -> None:
    ran = await run(node.directory, "explain", "10.5.2.2", "198.51.100.9")
    assert ran.code == 0
    assert ran.out.isascii()
    sentence, rule, *_ = ran.out.splitlines()
    assert sentence == samples.explanation().explanation
    assert rule == f"FLANNEL-POSTRTG  {samples.rules().rules[2].text}"


async def test_what_an_encoding_lacks_is_a_question_mark_and_in_json_an_escape(node: FakeNode) -> None:
    found = samples.explanation()
    found.explanation = "from h1 → h2 in 480 µs"
    node.masq.replies.by_method["Explain"] = found
    words = ("explain", "10.5.2.2", "198.51.100.9")
    assert (await run(node.directory, *words)).out.startswith("from h1 → h2 in 480 µs\n")
    ran = await run(node.directory, *words, prefix=ASCII)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("from h1 ? h2 in 480 ?s\n")
    ran = await run(node.directory, *words, "-o", "json", prefix=ASCII)
    assert ran.out.isascii()
    assert json.loads(ran.out)["explanation"] == found.explanation


async def test_a_doctor_that_finds_nothing_says_so_also_in_a_pipe(node: FakeNode) -> None:
    ran = await run(node.directory, "doctor")
    assert (ran.code, ran.out, ran.err) == (0, "h1: no problems found\n", "")


async def test_a_wrong_socket_directory_beside_the_right_lease_service_is_not_healthy(
    node: FakeNode, tmp_path: Path
) -> None:
    node.lease.replies.by_method["GetStatus"] = samples.lease_status(node="")
    wrong = tmp_path / "wrong"
    words = ("--lease", f"{node.directory}/lease.sock", "--socket-dir", str(wrong))
    ran = await run(node.directory, *words, "status")
    assert ran.code == 1
    assert ran.out.startswith("this host is not healthy: 2 problems\n")
    assert [line for line in ran.out.splitlines() if line.endswith((" ready", " away"))] == [
        "lease        ready",
        "dataplane    away",
        "masq         away",
    ]
    assert ran.out.count(f"there is no directory {wrong}") == 2
    ran = await run(node.directory, *words, "doctor", "-o", "json")
    assert (ran.code, [each["service"] for each in ran.json["problems"]]) == (1, ["dataplane", "masq"])
    assert (await run(node.directory, *words, "doctor", "lease")).code == 0
    assert (await run(node.directory, *words, "wait", "--ready", "--timeout", "0")).code == 1


async def test_the_host_of_a_central_lease_service_is_healthy_by_itself(node: FakeNode) -> None:
    node.lease.replies.by_method["GetStatus"] = samples.lease_status(node="")
    await node.stop("dataplane", "masq")
    ran = await run(node.directory, "status")
    assert ran.code == 0
    assert "dataplane    not here" in ran.out
