"""The compose lab, for tests that are marked so; where it cannot run they are skipped, with the reason."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose.composition import COMPOSE
from tests.compose.figures import FIGURES

_IMAGES = ("lease", "dataplane", "masq", "cloud", "ctl", "all", "lab", "etcd")


@pytest.fixture(scope="session")
def _docker() -> None:
    reason = _what_is_missing()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def directory(_docker: None) -> Iterator[Path]:
    """One whose path is short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="fl-") as path:
        yield Path(path)


def pytest_unconfigure() -> None:
    if FIGURES.hosts:
        print(f"\n{FIGURES}")


def _what_is_missing() -> str:
    if os.getuid():
        return "the tests look into the containers' network namespaces, which only root may"
    if not shutil.which("docker") or subprocess.run(["docker", "version"], capture_output=True).returncode:
        return "no docker engine answers; make compose-test starts one where that is possible"
    compose = subprocess.run(
        ["sh", str(COMPOSE / "compose.sh"), "version", "--short"], capture_output=True, text=True
    )
    if compose.returncode:
        return compose.stderr.strip()
    FIGURES.compose = compose.stdout.strip()
    for name in _IMAGES:
        if subprocess.run(["docker", "image", "inspect", f"flannelette-{name}"], capture_output=True).returncode:
            return f"there is no image flannelette-{name}: make images"
    return ""
