"""Words, addresses and reasons of the command line."""

import asyncio
import socket
import stat
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.connect.call import CallFailed, Channels, diagnose, who_may
from flannelette.services.ctl.connect.targets import Target, read_address, targets
from flannelette.services.ctl.options import read_duration, write_duration
from flannelette.services.ctl.screen import ago, duration, short_time, took, until
from tests.ctl.samples import NOW, at


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0 s"),
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 m"),
        (187, "3 m 7 s"),
        (3600, "1 h"),
        (3601, "1 h"),
        (82_680, "22 h 58 m"),
        (86_400, "1 d"),
        (90_000, "1 d 1 h"),
        (86_460, "1 d"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_times_are_said_as_seen_from_now() -> None:
    assert until(at(hours=22, minutes=58), NOW) == "22 h 58 m"
    assert ago(at(seconds=-12), NOW) == "12 s ago"


def test_counts_have_their_plural() -> None:
    assert [count(n, "lease") for n in (0, 1, 2, 10_000)] == ["0 leases", "1 lease", "2 leases", "10,000 leases"]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/x/lease.sock", "unix:/run/x/lease.sock"),
        ("unix:///run/x/lease.sock", "unix:/run/x/lease.sock"),
        ("unix:lease.sock", "unix:lease.sock"),
        ("/run/x/lease.sock", "unix:/run/x/lease.sock"),
        ("./lease.sock", "unix:lease.sock"),
        ("127.0.0.1:7000", "127.0.0.1:7000"),
        ("lease.example:7000", "lease.example:7000"),
        ("[::1]:7000", "[::1]:7000"),
    ],
)
def test_an_address_may_be_a_path(text: str, address: str) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize("text", ["", "lease", "lease.sock", "unix:", "127.0.0.1:", "http://127.0.0.1:1", "::1:7000"])
def test_what_is_no_address_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        read_address(text)


def test_an_address_that_was_named_replaces_the_socket_of_that_service_only() -> None:
    found = targets(Path("/run/f"), {"lease": "127.0.0.1:7000", "masq": None})
    assert [(t.address, t.named) for t in found.values()] == [
        ("127.0.0.1:7000", True),
        ("unix:/run/f/dataplane.sock", False),
        ("unix:/run/f/masq.sock", False),
    ]


def test_a_directory_that_does_not_exist_is_said(tmp_path: Path) -> None:
    diagnosis = diagnose(at_path(tmp_path / "none" / "lease.sock"), "")
    assert diagnosis.missing
    assert f"there is no directory {tmp_path}/none" in diagnosis.sentence


def test_a_service_that_stopped_is_told_from_one_that_never_ran(tmp_path: Path) -> None:
    path = tmp_path / "lease.sock"
    assert "start flannelette-lease, or check --socket-dir" in diagnose(at_path(path), "").sentence
    Path(f"{path}.lock").touch()
    assert "flannelette-lease has stopped" in diagnose(at_path(path), "").sentence


def test_a_socket_left_by_a_killed_service_is_said(tmp_path: Path) -> None:
    path = tmp_path / "lease.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    diagnosis = diagnose(at_path(path), "")
    assert not diagnosis.missing
    assert "flannelette-lease was killed; start it again" in diagnosis.sentence


def test_a_file_a_path_too_long_and_a_mute_listener_are_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a socket: check --lease" in diagnose(at_path(tmp_path / "file", named=True), "").sentence
    assert "107 bytes" in diagnose(at_path(tmp_path / ("x" * 120)), "").sentence
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute"))
        mute.listen()
        assert diagnose(at_path(tmp_path / "mute"), "why").sentence.endswith("does not answer: why")
        said = diagnose(at_path(tmp_path / "mute"), "attempt timed out before receiving SETTINGS frame").sentence
        assert said.endswith("its process is stopped or overloaded; look at its log")


async def test_a_call_that_is_given_up_does_not_cancel_others_of_its_service(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute"))
        mute.listen()
        target = at_path(tmp_path / "mute")
        async with Channels() as channels:
            given_up, other = await asyncio.gather(
                channels.ask(target, lambda _: asyncio.Event().wait(), 0.1),
                channels.ask(target, lambda c: LeaseServiceStub(c).GetStatus(lease_pb2.GetStatusRequest()), 60),
                return_exceptions=True,
            )
    assert isinstance(given_up, CallFailed)
    assert isinstance(other, CallFailed), repr(other)


def test_over_tcp_the_details_of_grpc_are_given() -> None:
    sentence = diagnose(Target("lease", "127.0.0.1:1", named=True), "Connection refused").sentence
    assert "no answer at 127.0.0.1:1" in sentence
    assert "(Connection refused)" in sentence


def test_who_may_use_a_socket_depends_on_its_mode_and_group() -> None:
    assert "group 4294900000 may" in who_may(stat.S_IFSOCK | 0o660, 0, 4_294_900_000)
    assert who_may(stat.S_IFSOCK | 0o660, 0, 0) == "only root may; use sudo"
    assert who_may(stat.S_IFSOCK | 0o600, 4_294_900_000, 5) == "only user 4294900000 may; use sudo"


def at_path(path: Path, *, named: bool = False) -> Target:
    return Target("lease", f"unix:{path}", named)


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0, "1 ms"), (12.4, "12 ms"), (3450, "3.5 s"), (59_000, "59.0 s"), (125_000, "2 m 5 s")],
)
def test_short_times_are_said_as_finely_as_matters(milliseconds: float, words: str) -> None:
    time = Duration()
    time.FromMicroseconds(int(milliseconds * 1000))
    assert short_time(time) == words


@pytest.mark.parametrize(
    ("microseconds", "words"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1000, "1.0 ms"),
        (1234, "1.2 ms"),
        (53_210, "53 ms"),
        (999_499, "999 ms"),
        (1_000_000, "1.0 s"),
        (59_940_000, "59.9 s"),
        (125_000_000, "2 m 5 s"),
    ],
)
def test_what_a_machine_needed_is_told_as_exactly_as_it_is_read(microseconds: int, words: str) -> None:
    assert took(microseconds) == words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43_200), ("2d", 172_800), ("1m30s", 90), ("2.5s", 2.5), ("250ms", 0.25)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds
    assert read_duration(text, plain=60) == seconds


def test_a_number_alone_is_a_duration_where_it_has_a_unit_of_old() -> None:
    assert [read_duration(text, plain=60) for text in ("2", "0.5", "0")] == [120, 30, 0]
    for text in ("", "h", "5", "1w", "²h", "1h h", "-5s", f"{10**20}d", "nan"):
        with pytest.raises(ValueError, match="write 90s, 1m30s, 12h or 2d"):
            read_duration(text)
    assert [write_duration(seconds) for seconds in (0, 0.25, 90, 3600, 172_800)] == ["0s", "250ms", "90s", "1h", "2d"]
