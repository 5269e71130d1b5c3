"""The virtual machine of `make vm-test` itself: on which processors it boots, and that nothing of it is left."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.vm import is_guest
from lab.vm.kernel import is_built
from lab.vm.machine import CACHE
from tests.paths import ROOT
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.skipif(is_guest(), reason="this is the virtual machine"),
    pytest.mark.skipif(not is_built(CACHE), reason="make vm-test builds the kernel of the virtual machine"),
]
IN_VM = [sys.executable, "-m", "lab.vm"]


def test_it_boots_on_a_processor_with_amx(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("gcc is missing: it compiles what stands for such a processor")
    library = tmp_path / "amx.so"
    source = ROOT / "tests/e2e/amx.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    done = subprocess.run(
        [*IN_VM, "--", "uname", "-n"],
        cwd=ROOT,
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "vm\n"), done.stdout + done.stderr


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_run_leaves_no_guest(ending: signal.Signals) -> None:
    run = subprocess.Popen(
        [*IN_VM, "--", "sh", "-c", "echo up; sleep 1000"], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    assert run.stdout
    assert run.stdout.readline() == b"up\n"
    os.kill(run.pid, ending)
    run.wait(PATIENCE)
    end = time.monotonic() + PATIENCE
    while left := _session(run.pid):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def _session(leader: int) -> dict[int, str]:
    """The command lines of its processes, which have its session and groups of their own."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,sid=,args="], check=True, capture_output=True, text=True).stdout
    rows = (line.split(maxsplit=2) for line in listed.splitlines())
    return {int(pid): words[0] if words else "" for pid, sid, *words in rows if int(sid) == leader}
