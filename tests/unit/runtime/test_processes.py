"""Processes of the host, whatever they call themselves and their cgroups."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flannelette.services.runtime.os.processes import Process, processes, udp_port_owner, unit_in

NAMED = "import ctypes, sys; ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)"
BOUND = "import socket; port = socket.socket(type=socket.SOCK_DGRAM); port.bind(('127.0.0.1', 0))"


@contextmanager
def process(name: bytes, code: str = "port = None") -> Iterator[tuple[int, int]]:
    """Its number, and the UDP port that it has if the code binds one."""
    said = "print(port.getsockname()[1] if port else 0, flush=True); input()"
    words = [sys.executable, "-c", f"{NAMED}; {code}; {said}", name.hex()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        yield running.pid, int(running.stdout.readline())
        running.stdin.write(b"\n")


def test_a_process_whose_name_is_no_text_keeps_no_other_from_being_found() -> None:
    with process(b"\xff\xfe\xfa"), process(b"fl-sought") as (sought, _):
        assert [each.pid for each in processes("fl-sought")] == [sought]
    assert list(processes("fl-sought")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="it takes root to be another user")
def test_what_another_user_s_process_calls_itself_says_nothing() -> None:
    other = "import os; os.setuid(65534); port = None"  # its files in /proc are root's until the next line
    shown = f"{other}; ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)"
    with process(b"fl-sought", other), process(b"fl-sought", shown), process(b"fl-sought") as (own, _):
        assert [each.pid for each in processes("fl-sought")] == [own]


def test_a_process_whose_name_is_no_text_is_named_as_the_one_that_has_a_port() -> None:
    with process(b"\xff\xfe", BOUND) as (pid, port):
        owner = udp_port_owner(port)
    assert owner is not None
    assert (owner.pid, owner.name, owner.end) == (pid, "\ufffd\ufffd", f"kill {pid}")


@pytest.mark.parametrize(
    ("groups", "unit"),
    [
        ("0::/system.slice/flanneld.service\n", "flanneld.service"),
        ("0::/../../system.slice/flanneld.service\n", "flanneld.service"),
        ("0::/system.slice/system-net.slice/net@a\\x2db.service\n", "net@a\\x2db.service"),
        ("0::/system.slice/flanneld.service/worker\n", "flanneld.service"),
        ("12:cpu:/\n1:name=systemd:/flanneld.service\n", "flanneld.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/kubelet.service\n", ""),
        ("0::/../user.slice/user-1000.slice/user@1000.service/a:/kubelet.service\n", ""),
        ("0::/kubepods.slice/cri-1.scope/system.slice/kubelet.service\n", ""),
        ("0::/system.slice/;reboot #.service\n", ""),
        ("0::/\n", ""),
    ],
)
def test_the_service_of_a_process_is_one_of_the_system(groups: str, unit: str) -> None:
    assert unit_in(groups) == unit


def test_the_end_of_a_service_is_a_command_that_a_shell_takes() -> None:
    assert Process(1, "net", "net@a\\x2db.service").end == r"systemctl disable --now 'net@a\x2db.service'"
