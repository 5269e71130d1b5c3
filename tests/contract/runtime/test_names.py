"""Names that only a process with the right to change the network namespace can hold."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.os import names
from flannelette.services.runtime.os.names import (
    RANGE,
    Claims,
    HeldName,
    NameClaim,
    holders,
    rightful,
    single_instance,
    stranger_findings,
)
from tests.faults.squatter import WITHOUT_RIGHTS

OURS = f"test-{os.getpid()}"
MANY = 50
_HOLD = (
    "import os, socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('\\0' + sys.argv[1]); "
    "print(os.fstat(s.fileno()).st_ino, flush=True); sys.stdin.read()"
)


@contextmanager
def bound(name: str, *around: str) -> Iterator[tuple[int, int]]:
    """The process and the inode of somebody who has just bound this name."""
    command = [*around, sys.executable, "-c", _HOLD, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


def test_a_name_that_a_stranger_has_is_held_all_the_same_and_the_stranger_is_named() -> None:
    with bound(OURS, *WITHOUT_RIGHTS) as (pid, inode), closing(HeldName(OURS, socket.SOCK_STREAM)) as held:
        assert [each.inode for each in rightful(OURS)] == [held.inode]
        assert {each.inode: each.is_rightful for each in holders(OURS)} == {held.inode: True, inode: False}
        (finding,) = stranger_findings(OURS)
        assert finding.problem == f"A process without CAP_NET_ADMIN holds @{OURS}, a name of this service."
        assert f"user {os.geteuid()}, process {pid} " in finding.evidence
    assert holders(OURS) == []


def test_a_second_one_is_refused_also_where_a_stranger_has_the_name() -> None:
    with (
        bound(f"flannelette-{OURS}", *WITHOUT_RIGHTS),
        single_instance(OURS, ""),
        pytest.raises(Misconfigured, match="another"),
        single_instance(OURS, ""),
    ):
        raise AssertionError


def test_a_process_of_an_older_release_proves_nothing_and_counts_where_it_is_seen() -> None:
    with bound(f"flannelette-{OURS}"), pytest.raises(Misconfigured, match="another"), single_instance(OURS, ""):
        raise AssertionError
    with single_instance(OURS, ""):
        pass


def test_port_ids_that_others_have_keep_nobody_from_a_name() -> None:
    with closing(HeldName(OURS, socket.SOCK_STREAM)) as held:
        taken: list[socket.socket] = []
        try:
            for inode in range(held.inode + 2 * MANY, held.inode + 4 * MANY):
                other = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
                taken.append(other)
                other.bind((inode, 0))
            with closing(HeldName(f"{OURS}-2", socket.SOCK_STREAM)) as second:
                assert [each.inode for each in rightful(f"{OURS}-2")] == [second.inode]
        finally:
            for other in taken:
                other.close()


def test_a_claim_of_a_stranger_excludes_nothing_and_one_of_a_network_does() -> None:
    claim, second = NameClaim(RANGE, "10.5.0.0/16"), NameClaim(RANGE, "10.6.0.0/16")
    with (
        bound(f"flannelette/{OURS}/red/range/10.0.0.0/8", *WITHOUT_RIGHTS),
        bound(f"flannelette/{OURS}/blue/range/10.6.0.0/16", *WITHOUT_RIGHTS),
        Claims(OURS, "blue") as blue,
        Claims(OURS, "red") as red,
    ):
        blue.take([claim, second])
        assert set(red.others()) == {("blue", claim), ("blue", second)}


def test_a_name_with_a_line_break_forges_none_where_the_kernel_has_no_diagnosis_of_sockets() -> None:
    with closing(HeldName(OURS, socket.SOCK_DGRAM)) as held:
        assert (OURS, held.inode) in names._listed()
        line = f"x\n{0:016x}: 00000002 00000000 00000000 0002 01 {held.inode} @{OURS}-f"
        with bound(line, *WITHOUT_RIGHTS):
            assert (f"{OURS}-f", held.inode) not in names._listed()
            assert rightful(f"{OURS}-f") == []
