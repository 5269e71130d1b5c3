"""Kinds of devices that few kernels have in a container, and the machine in which they are tested then."""

import os
import shlex
import subprocess
import sys
from typing import Final

import pytest

from tests.hosts.namespaces import NetworkNamespace
from tests.paths import ROOT

VM: Final = shlex.split(os.environ.get("FLANNELETTE_VM", ""))
"""A command that runs another one as root in such a machine, on the same files: `FLANNELETTE_VM -- pytest ...`.

It may be emulated, and slow: then set FLANNELETTE_PATIENCE to 10.
"""
_WORDS: Final = {"ipip": "local 192.0.2.1"}


def has_kind(host: NetworkNamespace, kind: str) -> bool:
    """Whether the kernel has devices of this kind, or loads it."""
    words = f"ip link add name probe type {kind} {_WORDS.get(kind, '')}".split()
    is_made = subprocess.run(host.command(*words), capture_output=True, check=False).returncode == 0
    if is_made:
        host.ip("link", "del", "probe")
    return is_made


def require_kind(host: NetworkNamespace, kind: str) -> NetworkNamespace:
    """The host; skips the test where its kernel has no such devices."""
    if not has_kind(host, kind):
        pytest.skip(f"this kernel has no {kind}: modprobe {kind}, or set FLANNELETTE_VM (tests/kinds.py)")
    return host


def run_in_another_machine(host: NetworkNamespace, kind: str, *tests: str) -> None:
    """Runs test files where the kernel has such devices, if this one has none."""
    if has_kind(host, kind):
        pytest.skip(f"this kernel has {kind} itself")
    if not VM:
        pytest.skip(f"FLANNELETTE_VM names no command that runs another one in a machine with {kind}")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run([*VM, "--", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
