"""A real containerd: of which CNI configurations are asked, or that starts pods with runc."""

import hashlib
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from tests import process_logs
from tests.patience import PATIENCE
from tests.tools import CACHE, find_tool, lacking

_OFF: Final = "snapshotter.v1.btrfs snapshotter.v1.zfs snapshotter.v1.devmapper snapshotter.v1.erofs nri.v1.nri"
_IMAGE: Final = "kube.invalid/pause:1"
_SETTINGS: Final = """version = 3
root = "ROOT/root"
state = "ROOT/state"
disabled_plugins = [OFF]
imports = ["ROOT/etc/containerd/config.toml"]
[grpc]
address = "ROOT/c.sock"
[ttrpc]
address = "ROOT/c.sock.ttrpc"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "IMAGE"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
"""


def _settings(root: Path) -> Path:
    off = ", ".join(f'"io.containerd.{each}"' for each in _OFF.split())
    path = root / "own.toml"
    path.write_text(_SETTINGS.replace("ROOT", str(root)).replace("OFF", off).replace("IMAGE", _IMAGE))
    return path


@contextmanager
def containerd(root: Path) -> Iterator[Path]:
    """A containerd with the configuration of this host's root; yields its socket."""
    program = find_tool("containerd")
    if os.geteuid() != 0:
        lacking("containerd needs root")
    process = process_logs.started((program, "--config", str(_settings(root))), root / "containerd.log")
    try:
        _wait(root / "c.sock", process)
        yield root / "c.sock"
    finally:
        process.terminate()
        process.wait()


def _wait(socket: Path, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE
    while not socket.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)


def field(number: int, content: bytes) -> bytes:
    """A field of a message, of less than 128 bytes, as protobuf writes it."""
    return bytes((number << 3 | 2, len(content))) + content


def texts(message: bytes, number: int) -> list[bytes]:
    """The contents of the fields of this number."""
    fields = UnknownFieldSet(Empty.FromString(message))
    return [fields[place].data for place in range(len(fields)) if fields[place].field_number == number]


def call(socket: Path, method: str, request: bytes = b"") -> bytes:
    """Calls a method of the Container Runtime Interface."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        grpc.channel_ready_future(channel).result(timeout=PATIENCE)
        ask = channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}", request_serializer=bytes, response_deserializer=bytes
        )
        answer: bytes = ask(request, timeout=PATIENCE)
        return answer


class Runtime:
    """A containerd that starts pods in a network namespace, with files below `root`, and a /var/lib of its own.

    It is the first process of a PID namespace, so that it takes all pods with it, as a host does.
    """

    def __init__(self, root: Path, namespace: Path) -> None:
        for program in ("containerd", "containerd-shim-runc-v2", "ctr"):
            find_tool(program)
        if os.geteuid() != 0 or not shutil.which("runc") or platform.machine() != "x86_64":
            lacking("pods of containerd take root, runc, and a processor that runs their one program")
        self.root = root
        self.socket = root / "c.sock"
        self._namespace = namespace
        self._process: subprocess.Popen[bytes] | None = None
        self._pods: list[str] = []
        (root / "etc/containerd").mkdir(parents=True, exist_ok=True)
        (root / "etc/containerd/config.toml").write_text(
            f'version = 3\n[plugins."io.containerd.cri.v1.runtime".cni]\n'
            f'conf_dir = "{root}/net.d"\nbin_dirs = ["{CACHE}/cni"]\n'
        )
        (root / "var/lib").mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Starts it, with what it has on disk."""
        settings = _settings(self.root)
        script = f"mount --bind {self.root}/var/lib /var/lib; exec {find_tool('containerd')} --config {settings}"
        words = ["nsenter", f"--net={self._namespace}", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        environment = {**os.environ, "PATH": f"{CACHE}/bin:{os.environ['PATH']}"}
        self._process = process_logs.started(
            [*words, "--mount-proc", "sh", "-euc", script], self.root / "containerd.log", env=environment
        )
        _wait(self.socket, self._process)
        self._import()

    def _import(self) -> None:
        image = self.root / "pause.tar"
        image.write_bytes(_pause_image())
        ctr = [find_tool("ctr"), "--address", str(self.socket), "--namespace", "k8s.io", "images", "import"]
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                [*ctr, "--local", "--snapshotter", "native", str(image)], check=False, capture_output=True
            )
            if not done.returncode:
                return
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.2)

    def cut_power(self) -> None:
        """Ends it and all pods at once; what is in memory alone is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self.root / "state", ignore_errors=True)
        self.socket.unlink(missing_ok=True)
        for place in (_CGROUPS, *_CGROUPS.iterdir()):
            for identity in self._pods:
                _remove(place / "k8s.io" / identity)

    def forget(self) -> None:
        """Removes what it has on disk, while it does not run."""
        shutil.rmtree(self.root / "root")

    def run_pod(self, name: str) -> str:
        """Starts a pod, and returns its ID."""
        metadata = b"".join(field(number, name.encode()) for number in (1, 2)) + field(3, b"tests")
        configuration = field(1, metadata) + field(8, field(2, b""))
        (identity,) = texts(call(self.socket, "RunPodSandbox", field(1, configuration)), 1)
        self._pods.append(identity.decode())
        return self._pods[-1]

    def remove_pod(self, identity: str) -> None:
        """Stops a pod and removes it, as the kubelet does."""
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            call(self.socket, method, field(1, identity.encode()))


_CGROUPS: Final = Path("/sys/fs/cgroup")


def _remove(cgroup: Path) -> None:
    """Removes a cgroup, once the kernel has ended its processes."""
    deadline = time.monotonic() + PATIENCE
    while cgroup.is_dir() and time.monotonic() < deadline:
        with suppress(OSError):
            cgroup.rmdir()
            return
        time.sleep(0.02)


_PAUSE: Final = bytes.fromhex("b8220000000f05ebf7")
"""mov eax, 34 (pause); syscall; jmp to the start: all that runs in a pod, on x86-64."""


def _pause_image() -> bytes:
    """An image with one program, as `docker save` writes one."""
    entry, size = 0x400078, 0x78 + len(_PAUSE)
    elf = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    elf += b"".join(
        number.to_bytes(width, "little")
        for number, width in (
            *((2, 2), (62, 2), (1, 4), (entry, 8), (64, 8), (0, 8), (0, 4), (64, 2), (56, 2), (1, 2), (0, 2), (0, 2)),
            *((0, 2), (1, 4), (5, 4), (0, 8), (0x400000, 8), (0x400000, 8), (size, 8), (size, 8), (0x1000, 8)),
        )
    )
    layer = _tar({"pause": elf + _PAUSE}, mode=0o755)
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    configuration: Mapping[str, object] = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest: Sequence[object] = [{"Config": "config.json", "RepoTags": [_IMAGE], "Layers": ["layer.tar"]}]
    documents = {"config.json": json.dumps(configuration), "manifest.json": json.dumps(manifest)}
    return _tar({"layer.tar": layer, **{name: text.encode() for name, text in documents.items()}})


def _tar(files: Mapping[str, bytes], mode: int = 0o644) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return found.getvalue()
