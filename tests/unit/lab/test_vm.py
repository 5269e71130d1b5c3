"""The VM runner, without a VM: what is refused."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.vm.kernel import layer_of
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


def test_a_kernel_that_does_not_build_is_no_machine_without_a_vm(tmp_path: Path) -> None:
    """Else CI would take it for a machine that can have none, and go on."""
    apt = {
        "apt-cache": "echo Depends: linux-source-9",
        "apt-get": "mkdir -p tree/DEBIAN tree/usr/src && echo no archive >tree/usr/src/linux.tar.xz && "
        "printf 'Package: a\\nVersion: 1\\nArchitecture: all\\nMaintainer: a\\nDescription: a\\n' "
        ">tree/DEBIAN/control && "
        "dpkg-deb -b tree a.deb && rm -r tree",
    }
    done = run(tmp_path, BUILDERS | apt, ":/usr/bin:/bin")
    log = tmp_path / "flannelette/vm/build.log"
    assert done.returncode == 126, done.stderr
    assert done.stderr.endswith(f"linux.tar.xz` failed: see {log}\n")


def test_a_guest_that_ends_early_is_no_machine_without_a_vm(tmp_path: Path) -> None:
    layer = layer_of(tmp_path / "flannelette/vm")
    for program in (layer / "usr/lib/linux", layer / "usr/bin/busybox"):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nexit 3\n")
        program.chmod(0o755)
    done = run(tmp_path, {}, ":/usr/bin:/bin")
    assert done.returncode == 126
    assert done.stderr == (
        "vm: the guest ended before the command did, with status 3; what its kernel said last is above. "
        "It may have used up its 4096 MiB: see --memory\n"
    )


def test_a_lab_that_fails_in_the_guest_says_what_the_guest_had_of_this_machine(tmp_path: Path) -> None:
    layer = layer_of(tmp_path / "flannelette/vm")
    for program in (layer / "usr/lib/linux", layer / "usr/bin/busybox"):
        program.parent.mkdir(parents=True)
        program.write_text('#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\necho 1 >"$1/code"\n')
        program.chmod(0o755)
    command = [sys.executable, "-m", "lab", "VM=1"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = r"lab: the VM had a processor for \d+ of \d+ s; this machine has a load of [\d.]+ on \d+ processors?"
    assert re.fullmatch(last, done.stderr.splitlines()[-1])


def test_the_guests_script_is_one() -> None:
    shell = shutil.which("sh")
    assert shell
    assert subprocess.run([shell, "-n", ROOT / "lab/vm/guest.sh"], check=False).returncode == 0
