"""lab/prepare.sh on a machine that lacks programs: what it would install."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.patience import PATIENCE

PROGRAMS = ("ip", "iptables", "nft", "sysctl", "ps", "openssl", "ipset", "cc", "sh", "env", "id", "dirname")
PACKAGES = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nft": "nftables",
    "sysctl": "procps",
    "ps": "procps",
    "openssl": "openssl",
    "ipset": "ipset",
    "cc": "gcc",
}


def missing(directory: Path, level: str, *lacking: str) -> list[str]:
    """The packages that it says are missing, on a machine with all programs but these, to an ordinary user."""
    path = directory / "bin"
    path.mkdir()
    for name in set(PROGRAMS) - set(lacking):
        (path / name).symlink_to(shutil.which(name) or "/bin/true")
    (path / "id").unlink()
    (path / "id").write_text("#!/bin/sh\necho 1000\n")
    (path / "id").chmod(0o755)
    shutil.copy(ROOT / "lab" / "prepare.sh", directory)
    script = directory / "prepare.sh"
    script.write_text(script.read_text().replace('PATH="$PATH:/usr/sbin:/sbin"', ":"))
    shell = shutil.which("sh") or "sh"
    environment = {"PATH": str(path), "PYTHON": sys.executable}
    done = subprocess.run(
        [shell, str(script), level], cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [each for each in done.stderr.splitlines() if "apt-get install" in each]
    return line.split("--no-install-recommends ")[1].split()


@pytest.mark.parametrize("program", PACKAGES)
def test_a_minimal_system_gets_what_tests_type(program: str, tmp_path: Path) -> None:
    assert PACKAGES[program] in missing(tmp_path, "dev", program)


def test_a_lab_gets_no_more_than_it_runs(tmp_path: Path) -> None:
    assert missing(tmp_path, "lab", "ip", "sysctl", "ps", "openssl") == ["iproute2"]
