"""The releases before this one: where their services are, and how they are started."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from lab.programs import Program
from tests.paths import ROOT

COMMITS: Final = {
    "0.1.0": "0adb557968cef69f6066ca91cfdea917340168c4",
    "0.2.0": "0f4da45e6a8a4007ea1822f3adc33cf596150035",
}
"""Of each release, the oldest first. Neither was tagged: it is the last commit that the changelog describes."""
LAST: Final = list(COMMITS)[-1]


def unpacked(version: str, directory: Path) -> Path:
    """The packages of a release, below the directory. Skips the test where the checkout lacks the commit."""
    home = files_of(version, directory, "services", "proto")
    about = home / f"flannelette-{version}.dist-info"  # what a service says that it is
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flannelette\nVersion: {version}\n")
    return home


def files_of(version: str, directory: Path, *folders: str) -> Path:
    """Folders of a release, below the directory. Skips the test where the checkout lacks the commit."""
    home = directory / version
    packed = subprocess.run(
        ["git", "-C", ROOT, "archive", COMMITS[version], *folders], capture_output=True, check=False
    )
    if packed.returncode:
        said = packed.stderr.decode().strip()
        pytest.skip(f"release {version} is not in this checkout ({said}): `git fetch --unshallow` gets it")
    home.mkdir()
    subprocess.run(["tar", "-x", "-C", home], input=packed.stdout, check=True)
    return home


def of_release(program: Program, packages: Path) -> Program:
    """The same command line, with these packages instead of this checkout's. Their import name is `services`."""
    path = os.pathsep.join([str(packages), str(packages / "proto")])
    words = (word.replace("flannelette.services.", "services.") for word in program.arguments)
    return replace(program, arguments=("env", "PYTHONSAFEPATH=1", f"PYTHONPATH={path}", *words))
