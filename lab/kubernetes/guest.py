"""A lab in a virtual machine (lab/vm), whose kernel has cgroup v2 alone.

The guest opens a file of this machine as often as it looks at one. The images are too many files for that, so they
come as one, and are unpacked into the guest's memory.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lab.kubernetes.parts import PLACE, WORK
from lab.vm.machine import Job
from lab.vm.machine import run as run_in_vm
from lab.vm.packages import VmFailed

_PACKED: Final = "FLANNELETTE_KUBE_IMAGES"
"""An environment variable in the guest: the file with the images."""
_MEMORY, _MEMORY_PER_NODE = 6144, 1024
"""Memory of the guest in MiB, and that of each node. The images take half of it."""
_TAR: Final = ("tar", "--sparse", "--xattrs", "--xattrs-include=*")  # layers of overlayfs have some


def run(command: Sequence[str], nodes: int, seconds: float | None = None) -> int:
    """The exit code of a command in the guest. Raises VmUnusable, VmFailed."""
    memory = _MEMORY + _MEMORY_PER_NODE * nodes
    with TemporaryDirectory(dir=PLACE, prefix=".images-") as place:
        packed = Path(place, "images.tar")
        imported = [name for name in ("containerd", "containerd.stamp") if (PLACE / name).exists()]
        _checked(*_TAR, "--create", f"--file={packed}", f"--directory={PLACE}", "--files-from=/dev/null", *imported)
        environment = {**os.environ, _PACKED: str(packed)}
        return run_in_vm(Job(command, environment=environment, seconds=seconds, memory=memory))


def bring_images() -> None:
    """Makes, in the guest, `WORK`: a directory in memory with what containerd has imported. Raises VmFailed."""
    if WORK.is_mount():
        return
    WORK.mkdir()
    _checked("mount", "-t", "tmpfs", "-o", "size=80%", "work", str(WORK))
    _checked(*_TAR, "--extract", f"--file={os.environ[_PACKED]}", f"--directory={WORK}")


def _checked(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VmFailed(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
