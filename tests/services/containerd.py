"""A real containerd, of which CNI configurations and pods are asked; it starts none."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests import process_logs
from tests.patience import PATIENCE
from tests.tools import find_tool, lacking

_OFF: Final = "snapshotter.v1.btrfs snapshotter.v1.zfs snapshotter.v1.devmapper snapshotter.v1.erofs nri.v1.nri"


@contextmanager
def containerd(root: Path) -> Iterator[Path]:
    """A containerd with the configuration of this host's root; yields its socket."""
    program, socket = find_tool("containerd"), root / "c.sock"
    if os.geteuid() != 0:
        lacking("containerd needs root")
    configuration = root / "etc/containerd/config.toml"
    rest = "".join(f'"io.containerd.{each}", ' for each in _OFF.split())
    (root / "own.toml").write_text(
        f'version = 3\nroot = "{root}/root"\nstate = "{root}/state"\ndisabled_plugins = [{rest}]\n'
        f'imports = ["{configuration}"]\n[grpc]\naddress = "{socket}"\n'
        '[plugins."io.containerd.cri.v1.images"]\nsnapshotter = "native"\n'
    )
    process = process_logs.started((program, "--config", str(root / "own.toml")), root / "containerd.log")
    deadline = time.monotonic() + PATIENCE
    try:
        while not socket.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        yield socket
    finally:
        process.terminate()
        process.wait()
