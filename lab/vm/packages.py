"""Debian packages, fetched and unpacked into the cache; only what builds a kernel is installed on this machine."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

_MERGED: Final = ("bin", "sbin", "lib", "lib64")
"""Links to the directories of /usr, as on the machine below the layer: else a layer would hide the machine's."""
_UNPACK: Final = 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"'
_LOCKED: Final = re.compile("[Uu]nable to (lock|acquire)|[Cc]ould not get lock")
_LOCK_SECONDS, _LOCK_PAUSE = 300.0, 2.0
"""How long another installation on this machine is waited for, and between two tries."""
_APT: Final = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


class VmUnusable(Exception):
    """There can be no VM on this machine; one line says why and what to do."""


class VmFailed(Exception):
    """There could be a VM, but its kernel did not build, or it ended early; one line says why and what to do."""


def require_packages(missing: Sequence[str]) -> None:
    """Installs these packages, if there are any. Raises VmUnusable."""
    if not missing:
        return
    install = f"apt-get install --yes --no-install-recommends {' '.join(missing)}"
    if os.getuid() or not shutil.which("apt-get"):
        raise VmUnusable(f"programs are missing on this machine: sudo {install}")
    print(f"vm: + {install}", file=sys.stderr, flush=True)
    _apt(*install.split()[1:])


def dependency(package: str, prefix: str) -> str:
    """The package with this prefix that a package depends on. Raises VmUnusable."""
    lines = _apt("show", "--no-all-versions", package, program="apt-cache").splitlines()
    (words,) = (line.replace(",", " ").split()[1:] for line in lines if line.startswith("Depends: "))
    return next(word for word in words if word.startswith(prefix))


def with_dependencies(packages: Sequence[str]) -> list[str]:
    """Returns the packages and those they need, without what is installed on this machine. Raises VmUnusable."""
    lines = _apt("--simulate", "--no-install-recommends", "install", *packages).splitlines()
    return sorted(line.split()[1] for line in lines if line.startswith("Inst "))


def unpack(packages: Iterable[str], directory: Path) -> None:
    """Fetches packages and unpacks them into a directory, which is there complete or not. Raises VmUnusable."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory.parent, prefix=".new-") as place:
        fetched, tree = Path(place, "fetched"), Path(place, "tree")
        fetched.mkdir()
        for name in _MERGED:
            (tree / "usr" / name).mkdir(parents=True)
            (tree / name).symlink_to(f"usr/{name}")
        _apt("-o", "APT::Sandbox::User=root", "download", *packages, directory=fetched)
        for file in fetched.iterdir():
            checked(["sh", "-c", _UNPACK, "sh", file, tree])
        with suppress(OSError):  # another run was faster
            tree.rename(directory)


def _apt(*arguments: str, program: str = "apt-get", directory: Path | None = None) -> str:
    """What apt prints; with fresh lists of packages, if it fails with those that there are. Raises VmUnusable."""
    if not shutil.which(program):
        raise VmUnusable(f"there is no {program} on this machine: the VM is made of Debian's packages")
    command = [program, *(["-qq"] if "--simulate" not in arguments and program == "apt-get" else []), *arguments]
    try:
        return _unlocked(command, directory)
    except VmUnusable:
        with suppress(VmUnusable):  # an ordinary user may not
            _unlocked(["apt-get", "-qq", "update"])
        return _unlocked(command, directory)


def _unlocked(command: Sequence[str], directory: Path | None = None) -> str:
    """`checked`, after another program has released apt's and dpkg's locks. Raises VmUnusable."""
    end, told = time.monotonic() + _LOCK_SECONDS, False
    while True:
        try:
            return checked(command, directory=directory)
        except VmUnusable as error:
            if not _LOCKED.search(str(error)) or time.monotonic() > end:
                raise
            if not told:
                print(f"vm: waits for another installation on this machine: {error}", file=sys.stderr, flush=True)
            told = True
            time.sleep(_LOCK_PAUSE)


def checked(
    command: Sequence[str | Path],
    program: Path | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    """What a command prints. Raises VmUnusable with its last line if it fails."""
    done = subprocess.run(
        command,
        executable=program,
        cwd=directory,
        env={**os.environ, **_APT, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        words = " ".join(map(str, command))
        raise VmUnusable(f"`{words}` failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout
