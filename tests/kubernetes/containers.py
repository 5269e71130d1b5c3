"""A container without an engine: a root of its own in a node's network namespace, with the rights of its manifest.

In the root there are the programs of this machine, this tree and Python, the volumes that are mounted, and nothing
else: no /tmp, no /run, no /etc that could be written to.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests import process_logs
from tests.hosts.namespaces import NetworkNamespace
from tests.paths import ROOT

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/sys", "/dev")
_FILES: Final = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/protocols")
_PYTHON: Final = tuple({sys.prefix, sys.base_prefix, str(ROOT), *(p for p in sys.path if Path(p).is_dir())})
ENVIRONMENT: Final = {
    "PATH": f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    "HOME": "/",  # which runc gives to a user without an entry in /etc/passwd
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True, slots=True)
class Mount:
    """What of the node is seen at a path of the container."""

    source: Path
    path: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class Rights:
    """As which user, and with what."""

    user: int = 0
    group: int = 0
    groups: tuple[int, ...] = ()
    capabilities: tuple[str, ...] = ()
    is_root_read_only: bool = True

    @classmethod
    def of(cls, container: Mapping[str, Any], pod: Mapping[str, Any], image: int = 0) -> "Rights":
        """Those of the manifest, with Kubernetes' defaults; `image` is the user and the group of the image.

        It must drop ALL: we know no engine's default set.
        """
        rights = container["securityContext"]
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert rights["allowPrivilegeEscalation"] is False
        user = rights.get("runAsUser", image)
        assert user or not rights.get("runAsNonRoot")
        group = pod["securityContext"].get("fsGroup")
        return cls(
            user,
            rights.get("runAsGroup", image),
            () if group is None else (group,),
            tuple(name.lower() for name in rights["capabilities"].get("add", ())),
            rights.get("readOnlyRootFilesystem", False),
        )

    def here(self) -> "Rights":
        """The same where this user namespace has no such user: root, and the capabilities of nobody all the same."""
        mapped = _mapped_ids()
        user, group = (number if number in mapped else 0 for number in (self.user, self.group))
        return replace(self, user=user, group=group, groups=tuple(filter(mapped.__contains__, self.groups)))


def start(
    namespace: NetworkNamespace,
    root: Path,
    command: Sequence[str],
    mounts: Sequence[Mount],
    rights: Rights,
    environment: Mapping[str, str],
    log: Path,
) -> "subprocess.Popen[bytes]":
    """The process itself, which gets the signals. `root` is an empty directory."""
    root.mkdir(exist_ok=True)
    script = "\n".join(_script(root, command, mounts, rights.here()))
    return process_logs.started(namespace.command("sh", "-euc", script), log, env=dict(environment))


def _script(root: Path, command: Sequence[str], mounts: Sequence[Mount], rights: Rights) -> Iterator[str]:
    """`ip netns exec` has given us a mount namespace of our own."""
    yield f"mount -t tmpfs -o mode=0755 tmpfs {_quoted(root)}"
    yield f"mkdir -p {_quoted(root)}/run {_quoted(root)}/var; ln -s ../run {_quoted(root)}/var/run"
    for path in map(Path, (*_SYSTEM, *_FILES, *_PYTHON)):
        if path.is_symlink() and str(path) in _SYSTEM:
            yield f"ln -s {_quoted(os.readlink(path))} {_quoted(root)}{path}"  # noqa: PTH115 - as it is written
        elif path.exists():
            yield from _bind(path, root, str(path))
    for mount in mounts:
        yield from _bind(mount.source, root, mount.path)
        if mount.is_read_only:
            yield f"mount -o remount,bind,ro {_quoted(root)}{shlex.quote(mount.path)}"
    if rights.is_root_read_only:
        yield f"mount -o remount,bind,ro {_quoted(root)}"
    groups = f"--groups={','.join(map(str, rights.groups))}" if rights.groups else "--clear-groups"
    if Path("/proc/self/setgroups").read_text().strip() == "deny":  # an ordinary user's namespace
        groups = "--keep-groups"
    capabilities = ",".join(("-all", *(f"+{name}" for name in rights.capabilities)))
    as_user = (
        f"setpriv --reuid={rights.user} --regid={rights.group} {groups} --no-new-privs "
        f"--bounding-set={capabilities} --inh-caps=-all"
    )
    yield f"exec chroot {_quoted(root)} {as_user} {shlex.join(command)}"


def _bind(source: Path, root: Path, path: str) -> Iterator[str]:
    target = _quoted(root) + shlex.quote(path)
    if source.is_dir():
        yield f"mkdir -p {target}"
    else:
        yield f"mkdir -p {_quoted(root)}{shlex.quote(str(Path(path).parent))}; touch {target}"
    yield f"mount --rbind {_quoted(source)} {target}"


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))


def _mapped_ids() -> range:
    """Of this user namespace, those that begin with root."""
    first, _, count = Path("/proc/self/uid_map").read_text().split()[:3]
    return range(int(first), int(first) + int(count))
