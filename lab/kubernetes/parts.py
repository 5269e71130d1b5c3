"""What the nodes are made of, in the cache: a part is built again when what it is made of has changed."""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.programs import find_etcd
from lab.show import Screen, Step
from lab.vm import is_guest

TREE: Final = Path(__file__).parents[2]
HERE: Final = Path(__file__).parent
CACHE: Final = Path(
    os.environ.get("CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flannelette")
)
PLACE: Final = CACHE / "kube"
ROOT: Final = PLACE / "root"
"""The root directory that every node has below its own files."""
WORK: Final = PLACE / "guest" if is_guest() else PLACE
"""Where a lab writes; in a virtual machine, see `guest`."""
IMAGES: Final = (PLACE / "nodes.tar", PLACE / "tree.tar")

_CONTROL_PLANE: Final = ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler")
_PROGRAMS: Final = (*_CONTROL_PLANE, "kubeadm", "kubectl", "kubelet")
_TOOLS: Final = {"cnitool": "a minute", "helm": "a minute", "grpcurl": "a minute", "flanneld": "2 minutes"}
_CODE: Final = ("services", "proto/flannelette", "deploy/images", "pyproject.toml")
_SAYS: Final = 64
"""Characters of a program's output that fit behind a step's title, in 80 columns."""


class PartMissing(Exception):
    """A part cannot be built here, or is in use; the message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part in the cache, and the command that makes it."""

    title: str
    cost: str
    """What building it takes, for people."""
    command: tuple[str | Path, ...]
    made: tuple[Path, ...]
    """Files that are there afterwards."""
    sources: tuple[Path, ...]
    """Files and directories that it is made of; with another content, or another command, it is built again."""

    @property
    def is_there(self) -> bool:
        """Whether it need not be built."""
        if not all(path.exists() for path in self.made):
            return False
        return self._stamp.exists() and self._stamp.read_text() == self._digest

    def build(self, step: Step) -> None:
        """Builds it; `step` says how far it is. Raises PartMissing."""
        PLACE.mkdir(parents=True, exist_ok=True)
        log, digest = PLACE / f"{self.title}.log", self._digest
        self._stamp.unlink(missing_ok=True)
        if self.title == "nodes":
            _collect_programs()
        with log.open("wb") as file:
            process = subprocess.Popen(
                self.command, cwd=TREE, stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0
            )
            try:
                while process.poll() is None:
                    step.update(_last_line(log))
                    time.sleep(0.5)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
                raise
        if process.returncode or not all(path.exists() for path in self.made):
            end = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise PartMissing(f"{self.title} cannot be built; the end of {log}:\n{end}")
        self._stamp.write_text(digest)

    @property
    def _stamp(self) -> Path:
        return PLACE / f"{self.title}.stamp"

    @property
    def _digest(self) -> str:
        words = "\0".join(word for word in self.command if isinstance(word, str))  # paths only say where
        return hashlib.sha256(f"{words}\0{_digest(self.sources)}".encode()).hexdigest()


@contextmanager
def locked() -> Iterator[None]:
    """One lab at a time builds and uses the parts. Raises PartMissing: another one does."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PartMissing(f"another kube-lab uses {PLACE}: end it, or set XDG_CACHE_HOME") from None
        yield


def version() -> str:
    """Returns the version of Kubernetes that lab/kubernetes.sh builds."""
    return _version_in("kubernetes.sh")


def flannel_version() -> str:
    """Returns the version of kube-flannel that lab/flanneld.sh builds."""
    return _version_in("flanneld.sh")


def flannels() -> Path:
    """kube-flannel's chart, and its manifests in `released`."""
    return CACHE / f"kube-flannel-{flannel_version()}"


def etcd_version() -> str:
    """Returns the version of the etcd on this machine."""
    said = subprocess.run([find_etcd(), "--version"], check=True, capture_output=True, text=True).stdout
    return said.split()[2]


def all_parts(policy: str = "") -> Iterator[Part]:
    """Yields the parts in the order in which they are built; with a policy engine that one too."""
    bin_, of_programs, of_tools = CACHE / "bin", TREE / "lab" / "kubernetes.sh", TREE / "lab" / "tools.sh"
    yield Part(
        "programs",
        "20 minutes on two cores, 0.6 GB",
        ("sh", of_programs, CACHE, *_PROGRAMS),
        tuple(bin_ / name for name in _PROGRAMS),
        (of_programs,),
    )
    beside = {"cnitool": (CACHE / "cni" / "flannel",), "flanneld": (flannels(), flannels() / "released")}
    for tool, cost in _TOOLS.items():
        made = (bin_ / tool, *beside.get(tool, ()))
        yield Part(tool, cost, ("sh", of_tools, tool, CACHE), made, (of_tools,))
    if policy:
        yield Part(policy, "2 minutes", ("sh", of_tools, policy, CACHE), (bin_ / policy,), (of_tools,))
    of_images = HERE / "images.sh"
    script = ("sh", TREE / "deploy" / "engine.sh", "build", "sh", of_images, PLACE)
    yield Part(
        "images",
        "10 minutes, 1.5 GB; a minute after a change",
        (*script, "tree"),
        (IMAGES[1],),
        (of_images, *(TREE / name for name in _CODE)),
    )
    yield Part(
        "nodes",
        "3 minutes, 3 GB",
        (*script, "nodes", *_names()),
        (ROOT / "etc", IMAGES[0]),
        (HERE / "Dockerfile", of_images, *(bin_ / f"{name}.version" for name in _PROGRAMS)),
    )


def build_missing(screen: Screen, policy: str = "") -> None:
    """Builds what is not in the cache, in the machine's own network; says before how long that takes."""
    missing = [part for part in all_parts(policy) if not part.is_there]
    for part in missing:
        screen.note(f"  {part.title} will be built, once: {part.cost}")
    if missing:
        screen.note(f"  into {PLACE}\n")
    for part in all_parts(policy):
        if not part.is_there:
            with screen.step(part.title, f"in {PLACE}") as step:
                part.build(step)


def _collect_programs() -> None:
    """Puts what goes into the nodes' image where the engine finds it."""
    context = PLACE / "context"
    shutil.rmtree(context, ignore_errors=True)
    (context / "bin").mkdir(parents=True)
    for name in _PROGRAMS:
        shutil.copy2(CACHE / "bin" / name, context / "bin")
    for name in ("flanneld", "grpcurl"):
        shutil.copy2(CACHE / "bin" / name, context / "bin")
    for name in ("etcd", "etcdctl"):
        shutil.copy2(find_etcd(name), context / "bin")
        (context / "bin" / name).chmod(0o755)
    shutil.copy2(CACHE / "cni" / "flannel", context)


def image_digests() -> dict[Path, str]:
    """What each file of images was made from."""
    return dict(zip(IMAGES, ((PLACE / f"{name}.stamp").read_text() for name in ("nodes", "images")), strict=True))


def _names() -> Sequence[str]:
    """Returns the names by which kubeadm, containerd, the manifests and the lab's pods look for the nodes' image."""
    release = f"v{version()}"
    manifest = (TREE / "deploy/kubernetes/base/daemonset.yaml").read_text()
    plugin = next(word for word in manifest.split() if "flannel-cni-plugin:" in word)
    return [
        *(f"kube.invalid/{name}:{release}" for name in _CONTROL_PLANE),
        f"kube.invalid/etcd:{etcd_version()}-0",
        "kube.invalid/pause:3.10.1",
        "kube.invalid/pod:1",
        plugin,
        f"ghcr.io/flannel-io/flannel:v{flannel_version()}",
    ]


def _version_in(script: str) -> str:
    lines = (TREE / "lab" / script).read_text().splitlines()
    return next(line.removeprefix("version=") for line in lines if line.startswith("version="))


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        paths = sorted(source.rglob("*")) if source.is_dir() else [source]
        for path in paths:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(source.parent)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip()[:_SAYS] for line in reversed(lines) if line.strip()), "…")
