"""The cgroups of nodes, in the hierarchies of this machine: cgroup v1's, or the one of v2."""

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from lab.build import CommandFailed
from lab.kubernetes.parts import PLACE

_GROUPS: Final = f"kube-lab-{sha256(bytes(PLACE)).hexdigest()[:8]}"
"""Two labs may run at once if each has a cache of its own."""
_V2: Final = "cgroup2"
_V2_ROOT: Final = Path("/sys/fs/cgroup")


def make_groups(name: str) -> Iterator[tuple[str, Path]]:
    """One of a node's own in each hierarchy: what that is mounted with, and the directory. Raises CommandFailed."""
    for what, parent in _hierarchies():
        group = parent / _GROUPS / name
        group.mkdir(parents=True, exist_ok=True)
        if what == _V2:
            _hand_controllers_on(parent)
            _hand_controllers_on(group.parent)
            if "memory" not in (group / "cgroup.controllers").read_text().split():
                raise CommandFailed(f"{parent} hands no controllers on: it is no root, and has processes of its own")
        else:
            _fill_in(group.parent)
            _fill_in(group)
        yield what, group


def remove_groups(name: str = "") -> None:
    """Removes those of a node, or of all nodes, of a lab that was killed too. Their processes have ended."""
    for _, parent in _hierarchies():
        for directory, _, _ in os.walk(parent / _GROUPS / name, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()


def _hand_controllers_on(group: Path) -> None:
    for controller in (group / "cgroup.controllers").read_text().split():
        with suppress(OSError):  # those that this machine keeps for itself
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _fill_in(group: Path) -> None:
    """What is empty at first in cgroup v1, and then nobody may enter."""
    for setting in ("cpuset.cpus", "cpuset.mems"):
        file = group / setting
        if file.exists() and not file.read_text().strip():
            file.write_text((group.parent / setting).read_text())


def _hierarchies() -> Iterator[tuple[str, Path]]:
    """What each is mounted with, and the directory of this process; in v2 the root: this one has processes."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    legacy = {names: path for _, names, path in own if names}
    if not legacy:
        yield _V2, _V2_ROOT
        return
    for _, at, kind, *_ in mounts:
        if kind != "cgroup":
            continue
        name = Path(at).name
        for names, path in legacy.items():
            if names in (name, f"name={name}") or set(names.split(",")) == set(name.split(",")):
                yield names, Path(at, path.lstrip("/"))
