"""The VM runner, without a VM: what is refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no command is given"),
        (["--share", "/missing", "--", "true"], "--share /missing: there is no such directory"),
        (["--env", "A", "--", "true"], "--env A: use NAME=VALUE"),
    ],
)
def test_wrong_options_are_said_before_anything_starts(arguments: list[str], complaint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lab.vm", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"python -m lab.vm: error: {complaint}")


def test_a_machine_without_a_compiler_and_apt_is_told(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "lab.vm", "true"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert done.stderr == (
        "vm: programs are missing on this machine: "
        "sudo apt-get install --yes --no-install-recommends bc bison flex gcc make xz-utils\n"
    )


def test_the_guests_script_is_one() -> None:
    shell = shutil.which("sh")
    assert shell
    assert subprocess.run([shell, "-n", ROOT / "lab/vm/guest.sh"], check=False).returncode == 0
