"""What tests start warm is as what they would start cold: tests/warm.py."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.waiting import eventually_sync

pytestmark = pytest.mark.skipif(os.environ.get("FLANNELETTE_SOAK") == "1", reason="soak starts each process anew")
_PROGRAM = (sys.executable, "-m", "flannelette.services.lease.main")
_OWN = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("--store=nonsense",), ("--nonsense",)])
def test_it_says_and_returns_the_same(words: tuple[str, ...]) -> None:
    before = warm.WARM.forked
    said = [
        subprocess.run([*_PROGRAM, *words], env=_OWN | more, capture_output=True, check=False)
        for more in ({}, {"FLANNELETTE_COLD": "1"})
    ]
    assert warm.WARM.forked == before + 1
    assert [vars(each) for each in said[:1]] == [vars(each) for each in said[1:]]


def test_it_is_a_child_with_its_own_words_files_namespace_and_end(netns: NetworkNamespace, tmp_path: Path) -> None:
    (tmp_path / "net-conf.json").write_text('{"Network":"10.5.0.0/16"}')
    files = ("--net-config-path=net-conf.json", "--store-file=leases.db")
    words = (f"--socket-dir={tmp_path}", "--store=embedded", *files)
    command, before = netns.command(*_PROGRAM, *words), warm.WARM.forked
    with (tmp_path / "log").open("wb") as log:
        own = {**_OWN, "ONLY_HERE": "1"}
        process = subprocess.Popen(command, env=own, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually_sync((tmp_path / "log").read_text, lambda text: "ready" in text)
        assert warm.WARM.forked == before + 1
        place = Path("/proc", str(process.pid))
        assert place.joinpath("ns/net").stat().st_ino == netns.path.stat().st_ino
        assert place.joinpath("ns/net").stat().st_ino != Path("/proc/self/ns/net").stat().st_ino
        assert place.joinpath("cmdline").read_text().rstrip("\0").split("\0") == [*_PROGRAM, *words]
        environ = place.joinpath("environ").read_text().rstrip("\0").split("\0")
        assert environ == [f"{name}={value}" for name, value in own.items()]
        assert place.joinpath("cwd").resolve() == tmp_path
        assert os.getsid(process.pid) == process.pid
        assert f"\nPPid:\t{os.getpid()}\n" in place.joinpath("status").read_text()
        assert {(tmp_path / "log").stat().st_ino} == {place.joinpath(f"fd/{each}").stat().st_ino for each in (1, 2)}
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


async def test_asyncio_waits_for_it_and_reads_its_pipes() -> None:
    process = await asyncio.create_subprocess_exec(*_PROGRAM, "--nonsense", env=_OWN, stdout=-1, stderr=-1)
    out, err = await process.communicate()
    assert (process.returncode, out) == (2, b""), err
    assert b"--nonsense" in err


def test_only_what_the_warm_process_can_be_is_warm() -> None:
    own = {"PYTHONPATH": "/ours", "LANG": "C"}
    assert warm.job_of(_PROGRAM, own, own) == warm.Job("flannelette.services.lease.main", ())
    inside = ("ip", "netns", "exec", "blue", *_PROGRAM, "--node=n1")
    assert warm.job_of(inside, own, own) == warm.Job("flannelette.services.lease.main", ("--node=n1",), "blue")
    labs = warm.job_of(("setpriv", "--pdeathsig", "KILL", *inside), own, own)
    assert labs == warm.Job("flannelette.services.lease.main", ("--node=n1",), "blue", dies_with_us=True)
    given = warm.job_of(("env", "A=1", "B=c=d", *_PROGRAM), own, own)
    assert given == warm.Job("flannelette.services.lease.main", (), variables={"A": "1", "B": "c=d"})
    for command in (
        ("env", "-i", *_PROGRAM),
        ("env", "LANG=C.UTF-8", *_PROGRAM),
        ("/usr/bin/python3", *_PROGRAM[1:]),
        (sys.executable, "-c", "0"),
        (sys.executable, "-m", "flannelette.services.lease.settings"),
        (sys.executable, "-X", "importtime", *_PROGRAM[1:]),
    ):
        assert warm.job_of(command, own, own) is None, command
    for more in ({"PYTHONPATH": "/theirs"}, {"LANG": "C.UTF-8"}, {"PYTHONUTF8": "0"}, {"FLANNELETTE_COLD": "1"}):
        assert warm.job_of(_PROGRAM, own | more, own) is None, more
