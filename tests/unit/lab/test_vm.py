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


def run(directory: Path, programs: dict[str, str], path: str = "") -> "subprocess.CompletedProcess[str]":
    """The VM runner on a machine that has these shell scripts as programs, and an empty cache."""
    for name, script in programs.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{directory}{path}", "XDG_CACHE_HOME": str(directory)}
    command = [sys.executable, "-m", "lab.vm", "true"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


BUILDERS = dict.fromkeys(("bc", "bison", "flex", "gcc", "make", "xz"), "exit 0")


def test_a_machine_without_a_compiler_and_apt_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, {})
    assert done.returncode == 125
    assert done.stderr == (
        "vm: programs are missing on this machine: "
        "sudo apt-get install --yes --no-install-recommends bc bison flex gcc libc6-dev make xz-utils\n"
    )


def test_a_compiler_without_the_headers_of_libc_lacks_their_package(tmp_path: Path) -> None:
    done = run(tmp_path, BUILDERS | {"gcc": "exit 1"})
    assert (done.returncode, done.stderr.split("recommends ")[-1]) == (125, "libc6-dev\n")


def test_the_guests_script_is_one() -> None:
    shell = shutil.which("sh")
    assert shell
    assert subprocess.run([shell, "-n", ROOT / "lab/vm/guest.sh"], check=False).returncode == 0
