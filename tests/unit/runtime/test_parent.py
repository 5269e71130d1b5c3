"""A child of flanneld ends with it; there is no moment at its start in which it would not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from flannelette.services.runtime.os.processes import with_parent
from tests.patience import PATIENCE

MASQ = (sys.executable, "-P", "-m", "flannelette.services.masq.main", "--version")
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], env=os.environ | {"FLANNELETTE_PARENT": str(os.getpid())})
time.sleep(0 if "gone" in sys.argv else 1000)
"""
CHILD = """
import sys, time
while "gone" in sys.argv and sys.stdin.read():
    pass
from flannelette.services.runtime.os.processes import end_with_parent
end_with_parent()
print("runs", flush=True)
time.sleep(1000)
"""


@contextmanager
def family(*words: str) -> Iterator["subprocess.Popen[str]"]:
    """A parent, whose child prints `runs`; the pipe is the child's too, and closed when both have ended."""
    command = (sys.executable, "-c", PARENT, sys.executable, "-c", CHILD, *words)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        yield parent


def test_a_child_ends_when_its_parent_is_killed() -> None:
    with family() as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "runs\n"
        parent.kill()
        assert parent.communicate(timeout=PATIENCE)[0] == ""


def test_a_child_whose_parent_has_ended_before_it_could_ask_ends_at_once() -> None:
    with family("gone") as parent:
        assert parent.wait(PATIENCE) == 0
        assert parent.communicate(timeout=PATIENCE)[0] == "", "its input ends here, and it goes on"


def test_a_service_asks_before_it_does_anything() -> None:
    found = subprocess.run(MASQ, env=os.environ | {"FLANNELETTE_PARENT": "0"}, capture_output=True, check=False)
    assert (found.returncode, found.stdout) == (-signal.SIGTERM, b"")
    found = subprocess.run(MASQ, env=os.environ | with_parent(), capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
