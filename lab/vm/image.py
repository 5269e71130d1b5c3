"""What the guest boots: Debian's kernel, and an archive in memory with the modules that mount the real files."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.vm.packages import VmUnusable, dependency, unpack

_KERNEL: Final = "linux-image-amd64"
"""The package; the one for clouds has no 9p."""
_BESIDE: Final = ("busybox-static", "kmod", "libkmod2")
_BOOT_MODULES: Final = (
    "virtio_pci",
    "virtio_console",
    "virtio_rng",
    "9pnet_virtio",
    "9p",
    "overlay",
)
GUEST: Final = Path(__file__).with_name("guest.sh")
_DIRECTORY, _FILE = 0o040755, 0o100755
_ALIGNMENT: Final = 4


@dataclass(frozen=True, slots=True)
class Image:
    """A kernel with its modules, unpacked."""

    layer: Path
    """Laid over the files of this machine: modules, modprobe."""
    version: str

    @property
    def kernel(self) -> Path:
        """What QEMU starts."""
        return self.layer / "boot" / f"vmlinuz-{self.version}"

    def initramfs(self, settings: str) -> bytes:
        """The first root directory of the guest, with a shell script of settings for guest.sh."""
        modules = (file.read_bytes() for file in self._boot_modules())
        return archive(
            {
                "init": GUEST.read_bytes(),
                "bin/busybox": (self.layer / "usr/bin/busybox").read_bytes(),
                **{f"modules/{number:02}.ko": module for number, module in enumerate(modules)},
                "vm/guest.sh": GUEST.read_bytes(),
                "vm/settings": settings.encode(),
            }
        )

    def _boot_modules(self) -> list[Path]:
        """In the order in which they are loaded."""
        found: dict[Path, None] = {}
        for name in _BOOT_MODULES:
            lines = self._kmod("modprobe", "-d", self.layer, "-S", self.version, "--show-depends", name).splitlines()
            found |= {Path(line.split()[1]): None for line in lines if line.startswith("insmod ")}
        return list(found)

    def index_modules(self) -> None:
        """Says which module needs which, as the package does when it is installed."""
        self._kmod("depmod", "-b", self.layer, self.version)

    def _kmod(self, name: str, *arguments: str | Path) -> str:
        (libraries,) = self.layer.glob("usr/lib/*-linux-gnu")
        environment = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
        command = [name, *arguments]
        program = self.layer / "usr/bin/kmod"
        done = subprocess.run(
            command, executable=program, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise VmUnusable(f"`{' '.join(map(str, command))}` failed: {done.stderr.strip()}; remove {self.layer}")
        return done.stdout


def find_image(cache: Path) -> Image:
    """The newest kernel in the cache; fetches Debian's current one if there is none. Raises VmUnusable."""
    if os.uname().machine != "x86_64":
        raise VmUnusable(f"the VM is for x86_64, this machine is {os.uname().machine}")
    layers = sorted(cache.glob("linux-image-*"), key=lambda path: path.stat().st_mtime)
    if not layers:
        package = dependency(_KERNEL, "linux-image-")
        print(f"vm: fetching Debian's {package} (once)", flush=True)
        unpack((package, *_BESIDE), cache / package)
        layers = [cache / package]
    image = Image(layers[-1], next((layers[-1] / "usr/lib/modules").iterdir()).name)
    if not (layers[-1] / "usr/lib/modules" / image.version / "modules.dep.bin").exists():
        image.index_modules()
    return image


def archive(files: Mapping[str, bytes]) -> bytes:
    """A cpio archive in the kernel's format (newc): executable files, and the directories they need."""
    directories = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    entries = [(name, _DIRECTORY, b"") for name in sorted(directories)]
    entries += [(name, _FILE, content) for name, content in files.items()]
    parts = [_entry(number, *entry) for number, entry in enumerate(entries, 1)]
    return b"".join([*parts, _entry(0, "TRAILER!!!", 0, b"")])


def _entry(number: int, name: str, mode: int, content: bytes) -> bytes:
    """Inode, mode, user, group, links, time, size, four device numbers, length of the name, and a checksum of 0."""
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
