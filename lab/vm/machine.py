"""Runs a command in the guest: QEMU's command line, the streams of the command, its exit code."""

import os
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lab.vm import GUEST_MARK
from lab.vm.image import Image, find_image
from lab.vm.packages import QEMU, VmUnusable, require_qemu, unpack, with_dependencies

TIMED_OUT: Final = 124
"""Exit code, as of timeout(1)."""
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flannelette", "vm")
MEMORY: Final = 3072
_MODULES: Final = ("fou", "br_netfilter", "tun")
"""What the kernel does not load by itself when it is needed."""
_KERNEL_WORDS: Final = "console=ttyS0 panic=-1 quiet loglevel=3 mitigations=off tsc=reliable no_timer_check"
_ACCELERATORS: Final = (("kvm", 30.0, 1), ("tcg,thread=multi", 300.0, 10))
"""In order of preference, with the seconds until the guest is up, and the factor of patience (FLANNELETTE_PATIENCE)
of what runs there. A /dev/kvm that is there need not work."""
_LEAVE: Final = b"\x1d"
"""Ctrl-]: ends the guest that does not listen to Ctrl-C."""
_CHUNK: Final = 65536


@dataclass(frozen=True, slots=True)
class Job:
    """What the guest is for."""

    command: Sequence[str]
    packages: Sequence[str] = ()
    """Debian packages that are laid over the files of this machine."""
    shares: Sequence[Path] = ()
    """Directories of this machine that the guest may write to."""
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    """How long the command may take."""
    memory: int = MEMORY
    """In MiB. What the guest writes is there too."""
    cpus: int = field(default_factory=lambda: min(os.cpu_count() or 1, 4))


def run(job: Job, cache: Path = CACHE) -> int:
    """The exit code of the command, whose output goes to ours; 124 if it took too long. Raises VmUnusable.

    If our input is a terminal, it is the command's, and Ctrl-C goes to the command.
    """
    require_qemu()
    cache.mkdir(parents=True, exist_ok=True)
    image = find_image(cache)
    layers = [image.layer]
    if job.packages and (found := with_dependencies(job.packages)):
        layer = cache / "packages" / sha256(" ".join(found).encode()).hexdigest()[:16]
        if not layer.exists():
            unpack(found, layer)
        layers.insert(0, layer)
    with TemporaryDirectory(prefix="flannelette-vm-") as place:
        initramfs = Path(place, "initramfs")
        for accelerator, seconds_until_up, factor in _ACCELERATORS:
            if accelerator == "kvm" and not os.access("/dev/kvm", os.R_OK | os.W_OK):
                continue
            _note(f"Linux {image.version}" + (", emulated: Python is 20 times slower" if factor > 1 else ""))
            # The cache is a mount of its own: overlayfs refuses a layer within another.
            text = _settings(job, [f"/cache/{layer.relative_to(cache)}" for layer in layers], _terminal(), factor)
            initramfs.write_bytes(image.initramfs(text))
            guest = _Guest(_qemu(job, image, initramfs, cache, accelerator), Path(place, "console"))
            code = guest.run(job.seconds, seconds_until_up)
            if code is not None:
                return code
            if guest.is_up:
                break
            _note(f"{accelerator} does not work here")
        raise VmUnusable(f"the guest ended before the command did\n{guest.last_words()}")


def _settings(job: Job, layers: Sequence[str], terminal: str, patience: int) -> str:
    """The shell script that guest.sh reads."""
    environment = {"FLANNELETTE_PATIENCE": str(patience), **job.environment, GUEST_MARK: "1"}
    words = shlex.join(
        ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items()), *job.command]
    )
    mounts = [f"mount_9p share{i} {shlex.quote(str(path))} cache=mmap" for i, path in enumerate(job.shares)]
    return f"""\
layers={shlex.quote(":".join(layers))}
modules={shlex.quote(" ".join(_MODULES))}
terminal={shlex.quote(terminal)}
shares() {{ {" && ".join(mounts) or "true"}; }}
run() {{ cd {shlex.quote(str(Path.cwd()))} || cd / && exec {words}; }}
"""


def _terminal() -> str:
    """The size of the terminal that we have, as stty(1) takes it; empty: we have none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    size = shutil.get_terminal_size()
    return f"rows {size.lines} cols {size.columns}"


def _qemu(job: Job, image: Image, initramfs: Path, cache: Path, accelerator: str) -> list[str]:
    """Its command line, without the ports. The guest has no network device."""
    shares = [("machine", Path("/"), "on"), ("cache", cache, "on")]
    shares += [(f"share{number}", path, "off") for number, path in enumerate(job.shares)]
    files = [
        f"local,path={str(path).replace(',', ',,')},mount_tag={tag},security_model=none,multidevs=remap,readonly={ro}"
        for tag, path, ro in shares
    ]
    return [
        *(QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-machine", "q35", "-accel", accelerator, "-cpu", "max"),
        *("-smp", str(job.cpus), "-m", str(job.memory)),
        *("-kernel", str(image.kernel), "-initrd", str(initramfs), "-append", _KERNEL_WORDS),
        *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
        *(word for text in files for word in ("-virtfs", text)),
    ]


class _Guest:
    """One run of QEMU. Port 0 is the guest's terminal, then come stdout, stderr and the status of the command."""

    def __init__(self, command: Sequence[str], console: Path) -> None:
        self._command = [*command, "-serial", f"file:{console}"]
        self._console = console
        self._errors = console.with_name("qemu")
        self._status = b""

    def run(self, seconds: float | None, seconds_until_up: float) -> int | None:
        """The exit code of the command, 124 if it takes too long; None: the guest did not get so far."""
        with ExitStack() as stack:
            ports, theirs = zip(*(socket.socketpair() for _ in range(4)), strict=True)
            words = [word for number, end in enumerate(theirs) for word in _port(number, end.fileno())]
            errors = stack.enter_context(self._errors.open("wb"))
            qemu = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._command, *words],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[end.fileno() for end in theirs],
                start_new_session=True,  # Ctrl-C is for us
            )
            stack.callback(qemu.wait)
            stack.callback(qemu.kill)
            for end in theirs:
                end.close()
            for port in ports:
                stack.enter_context(port)
            is_in_time = self._carry(ports, seconds, seconds_until_up)
        if not is_in_time and self.is_up:
            _note(f"the command did not end within {seconds:g} s")
            return TIMED_OUT
        lines = self._status.decode().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("exit ")), None)

    def _carry(self, ports: Sequence[socket.socket], seconds: float | None, seconds_until_up: float) -> bool:
        """Copies what the guest writes until it is off; False: it took too long."""
        terminal, out, err, status = ports
        start = time.monotonic()
        with selectors.DefaultSelector() as selector, _raw_terminal() as keys:
            sinks: dict[socket.socket, Callable[[bytes], None]] = {
                terminal: lambda data: _write(sys.stdout.fileno(), data),
                out: lambda data: _write(sys.stdout.fileno(), data),
                err: lambda data: _write(sys.stderr.fileno(), data),
                status: self._hear,
            }
            for port in ports:
                selector.register(port, selectors.EVENT_READ)
            if keys is not None:
                selector.register(keys, selectors.EVENT_READ)
            while sinks:
                limit = seconds if self.is_up else seconds_until_up
                left = None if limit is None else start + limit - time.monotonic()
                if left is not None and left <= 0:
                    return False
                for key, _ in selector.select(left):
                    if isinstance(key.fileobj, socket.socket):
                        if data := _read(key.fileobj):
                            sinks[key.fileobj](data)
                        else:
                            selector.unregister(key.fileobj)
                            del sinks[key.fileobj]
                    else:
                        data = os.read(key.fd, _CHUNK)
                        if not data or _LEAVE in data:
                            raise KeyboardInterrupt
                        terminal.sendall(data)
        return True

    @property
    def is_up(self) -> bool:
        """Whether it came to start the command."""
        return b"up" in self._status

    def _hear(self, data: bytes) -> None:
        self._status += data

    def last_words(self) -> str:
        """What QEMU and the guest's kernel complained of."""
        texts = [path.read_text(errors="replace") for path in (self._errors, self._console) if path.exists()]
        return "".join(texts).strip() or "neither QEMU nor the kernel says why"


def _port(number: int, descriptor: int) -> tuple[str, ...]:
    kind = "virtserialport" if number else "virtconsole"
    return (
        *("-chardev", f"socket,id=port{number},fd={descriptor}"),
        *("-device", f"{kind},chardev=port{number},nr={number}"),
    )


@contextmanager
def _raw_terminal() -> Iterator[int | None]:
    """The descriptor of our terminal, every key of which is the guest's; None: we have none."""
    if not _terminal():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read(port: socket.socket) -> bytes:
    with suppress(ConnectionResetError):
        return port.recv(_CHUNK)
    return b""


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _note(text: str) -> None:
    print(f"vm: {text}", file=sys.stderr, flush=True)
