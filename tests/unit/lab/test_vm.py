"""The VM runner, without a VM: the archive that the kernel unpacks, and what is refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.vm.image import GUEST, archive
from tests.paths import ROOT


def test_the_archive_is_what_the_kernel_unpacks() -> None:
    data = archive({"bin/a": b"12345", "vm/b/c": b""})
    entries: list[tuple[bytes, str, bytes]] = []
    while not entries or entries[-1][0] != b"TRAILER!!!":
        head = [int(data[at : at + 8], 16) for at in range(6, 110, 8)]
        assert data[:6] == b"070701"
        name = data[110 : 110 + head[11] - 1]
        at = (110 + head[11] + 3) // 4 * 4
        entries.append((name, oct(head[1]), data[at : at + head[6]]))
        data = data[at + (head[6] + 3) // 4 * 4 :]
    assert entries == [
        (b"bin", "0o40755", b""),
        (b"vm", "0o40755", b""),
        (b"vm/b", "0o40755", b""),
        (b"bin/a", "0o100755", b"12345"),
        (b"vm/b/c", "0o100755", b""),
        (b"TRAILER!!!", "0o0", b""),
    ]
    assert data == b""


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


def test_a_machine_without_apt_is_told(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "lab.vm", "true"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert done.stderr == (
        "vm: there is no qemu-system-x86_64 on this machine: "
        "sudo apt-get install --yes --no-install-recommends qemu-system-x86\n"
    )


def test_the_guests_script_is_one() -> None:
    shell = shutil.which("sh")
    assert shell
    assert subprocess.run([shell, "-n", GUEST], check=False).returncode == 0
