"""The guest's kernel: built once from Debian's sources, with the modules that kernels of containers lack."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lab.vm.packages import VmFailed, VmUnusable, checked, dependency, require_packages, unpack

CONFIG: Final = Path(__file__).with_name("kernel.config")
_XSTATE: Final = Path(__file__).with_name("whole_xstate.h")
"""What the guest needs on a processor with AMX; it says why."""
_REGISTERS: Final = "arch/x86/um/os-Linux/registers.c"
_FIXED_SIZE: Final = "FP_SIZE"
"""Is in that file where the size of the processor's state is a constant."""
_LAST_HEADER: Final = "#include <registers.h>\n"
_SOURCE: Final = "linux-source"
_BESIDE: Final = ("busybox-static", "kmod", "libkmod2")
_TOOLS: Final = {"bc": "bc", "bison": "bison", "flex": "flex", "gcc": "gcc", "make": "make", "xz": "xz-utils"}
"""What builds a kernel: programs and the packages that have them."""
_HEADERS: Final = "libc6-dev"
_INCLUDES: Final = ("gcc", "-fsyntax-only", "-include", "stdio.h", "-x", "c", os.devnull)
"""A command that needs the headers, which gcc only recommends."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with its modules."""

    layer: Path
    """Laid over the files of this machine: kernel, modules, modprobe."""

    @property
    def program(self) -> Path:
        """What is started on this machine."""
        return self.layer / "usr/lib/linux"

    @property
    def busybox(self) -> Path:
        """A program that needs no other, and is most commands of a system."""
        return self.layer / "usr/bin/busybox"


def find_kernel(cache: Path) -> Kernel:
    """The kernel of today's configuration in the cache; it is built if there is none. Raises VmUnusable, VmFailed."""
    if platform.machine() != "x86_64":
        raise VmUnusable(f"the VM is for x86_64, this machine is {platform.machine()}")
    layer = layer_of(cache)
    if not layer.exists():
        require_packages(sorted(_missing_packages()))
        package = dependency(_SOURCE, f"{_SOURCE}-")
        with TemporaryDirectory(dir=cache, prefix=".new-") as place:
            _build(package, Path(place), layer)
    return Kernel(layer)


def is_built(cache: Path) -> bool:
    """Whether `find_kernel` finds it."""
    return layer_of(cache).exists()


def layer_of(cache: Path) -> Path:
    """Where the kernel of today's configuration and changes is, or will be."""
    return cache / f"linux-{sha256(CONFIG.read_bytes() + _XSTATE.read_bytes()).hexdigest()[:12]}"


def _missing_packages() -> Iterator[str]:
    yield from (package for program, package in _TOOLS.items() if not shutil.which(program))
    if not shutil.which("gcc") or subprocess.run(_INCLUDES, capture_output=True, check=False).returncode:
        yield _HEADERS


def _build(package: str, place: Path, layer: Path) -> None:
    log = place.parent / "build.log"
    print(f"vm: building Debian's {package} (once; 5 to 10 minutes; {log})", file=sys.stderr, flush=True)
    source, tree = place / "source", place / "tree"
    unpack((package,), source)
    unpack(_BESIDE, tree)
    (archive,) = source.glob("usr/src/*.tar.xz")
    with log.open("wb") as output:

        def do(*command: str | Path, within: Path = source) -> None:
            done = subprocess.run(command, cwd=within, stdout=output, stderr=output, check=False)
            if done.returncode:
                raise VmFailed(f"`{' '.join(map(str, command))}` failed: see {log}")

        do("tar", "--extract", "--file", archive)
        (linux,) = (path for path in source.glob("linux-*") if path.is_dir())
        _lengthen_xstate(linux / _REGISTERS)
        make = ("nice", "make", "ARCH=um", f"-j{os.cpu_count() or 1}")
        do(*make, f"KCONFIG_ALLCONFIG={CONFIG}", "allnoconfig", within=linux)
        do(*make, "linux", "modules", within=linux)
        do(*make, f"INSTALL_MOD_PATH={tree / 'usr'}", "INSTALL_MOD_STRIP=1", "modules_install", within=linux)
        do("strip", "-o", tree / "usr/lib/linux", linux / "linux")
    _index_modules(tree)
    with suppress(OSError):  # another run was faster
        tree.rename(layer)


def _lengthen_xstate(source: Path) -> None:
    """Lets the guest boot on a processor with AMX. Raises VmFailed if the source is not one that it knows."""
    text = source.read_text()
    if _FIXED_SIZE not in text:
        return
    if text.count(_LAST_HEADER) != 1:
        raise VmFailed(f"{source.name} of this kernel is another one than lab/vm/whole_xstate.h is for")
    source.write_text(text.replace(_LAST_HEADER, f'{_LAST_HEADER}#include "{_XSTATE}"\n'))


def _index_modules(tree: Path) -> None:
    """Says which module needs which, as a package of a kernel does when it is installed."""
    (libraries,) = tree.glob("usr/lib/*-linux-gnu")
    (modules,) = (tree / "usr/lib/modules").iterdir()
    program = tree / "usr/bin/kmod"
    try:
        checked(["depmod", "-b", tree, modules.name], program, {"LD_LIBRARY_PATH": str(libraries)})
    except VmUnusable as error:
        raise VmFailed(str(error)) from None
