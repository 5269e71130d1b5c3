"""Runs a command in the guest: the kernel's command line, the streams of the command, its exit code."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from lab.vm import GUEST_MARK
from lab.vm.kernel import find_kernel
from lab.vm.packages import VmFailed, VmUnusable, unpack, with_dependencies

TIMED_OUT: Final = 124
"""Exit code, as of timeout(1)."""
UNUSABLE: Final = 125
FAILED: Final = 126
INTERRUPTED: Final = 130
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flannelette", "vm")
MEMORY: Final = 4096
PATIENCE: Final = 4.0
"""The factor of patience (FLANNELETTE_PATIENCE) of what runs in the guest."""
_MODULES: Final = ("fou", "br_netfilter")
"""What the kernel does not load by itself when it is needed."""
_GUEST: Final = Path(__file__).with_name("guest.sh")
_ALONE: Final = ("setpriv", "--pdeathsig", "KILL")
"""Ends the command when this process ends, also by SIGKILL."""
_PID_NAMESPACE: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Command that makes a PID namespace, because beside the kernel run processes of its programs, and a thread that does
not end with it."""
_WORDS: Final = ("seccomp=auto", "rootfstype=hostfs", "hostfs=/", "ro", "quiet", "loglevel=3", "panic=-1", "con=null")


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
    """How long the guest may take."""
    memory: int = MEMORY
    """MiB that the guest may have at most. What it writes is there too."""


def attempt(job: Job) -> int:
    """The exit code of `run`; 130 if it is interrupted.

    125 if there can be no guest on this machine, 126 if its kernel does not build or it ends early; stderr says why.
    """
    try:
        return run(job)
    except (VmUnusable, VmFailed) as error:
        print(f"vm: {error}", file=sys.stderr)
        return UNUSABLE if isinstance(error, VmUnusable) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def run(job: Job, cache: Path = CACHE) -> int:
    """The exit code of the command, whose output goes to ours; 124 if it took too long. Raises VmUnusable, VmFailed.

    If our input is a terminal, it is the command's, and Ctrl-C goes to the command.
    """
    cache.mkdir(parents=True, exist_ok=True)
    kernel = find_kernel(cache)
    layers = [kernel.layer]
    if job.packages and (found := with_dependencies(job.packages)):
        layer = cache / "packages" / sha256(" ".join(found).encode()).hexdigest()[:16]
        if not layer.exists():
            unpack(found, layer)
        layers.insert(0, layer)
    with TemporaryDirectory(prefix="flannelette-vm-") as name:
        place = Path(name)
        shutil.copy(_GUEST, place)
        shutil.copy(kernel.busybox, place)
        (place / "settings").write_text(_settings(job, layers, place))
        command = [str(kernel.program), *_words(job, place)]
        environment = os.environ | {"TMPDIR": _directory_of_memory(job.memory)}
        guest = subprocess.Popen([*_ALONE, *_namespaces(), *command], env=environment, process_group=0)
        try:
            with _terminal_lent_to(guest.pid):
                guest.wait(job.seconds)
        except subprocess.TimeoutExpired:
            print(
                f"vm: the command did not end within {job.seconds:g} s, and was killed",
                file=sys.stderr,
            )
            return TIMED_OUT
        finally:
            with suppress(ProcessLookupError):
                os.killpg(guest.pid, signal.SIGKILL)
            guest.wait()
        code = place / "code"
        if not code.exists():
            raise VmFailed(_early_end(guest.returncode, job.memory))
        return int(code.read_text())


def _namespaces() -> tuple[str, ...]:
    """A PID namespace, whose processes end with its first one: the guest's kernel. Root needs no user namespace."""
    if os.geteuid() == 0:
        return _PID_NAMESPACE
    with_user = (*_PID_NAMESPACE, "--user", "--map-current-user")
    allowed = subprocess.run([*with_user, "true"], capture_output=True, check=False).returncode == 0
    return with_user if allowed else ()


def _early_end(status: int, memory: int) -> str:
    """What is known of a guest that has ended without its command."""
    said = f"the guest ended before the command did, with status {status}"
    if status in (-signal.SIGBUS, 128 + signal.SIGBUS):  # a page of its memory's file for which there is no room
        return f"{said}: there is no room for its memory of {memory} MiB: make some in /dev/shm, or use --memory"
    return f"{said}; what its kernel said last is above. It may have used up its {memory} MiB: see --memory"


def _settings(job: Job, layers: Sequence[Path], place: Path) -> str:
    """The shell script that guest.sh reads."""
    environment = {"FLANNELETTE_PATIENCE": str(PATIENCE), **job.environment, GUEST_MARK: "1"}
    words = shlex.join(
        ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items()), *job.command]
    )
    return f"""\
each_layer() {{ for each in {shlex.join(map(str, layers))}; do "$1" "$each"; done; }}
each_share() {{ for each in {shlex.join(map(str, [place, *job.shares]))}; do "$1" "$each"; done; }}
modules={shlex.quote(" ".join(_MODULES))}
terminal={shlex.quote(_terminal())}
run() {{ cd {shlex.quote(str(Path.cwd()))} || cd / && exec {words}; }}
"""


def _words(job: Job, place: Path) -> list[str]:
    """The kernel's command line. What follows `--` are the arguments of the first process, busybox."""
    streams = ["con0=fd:0,fd:1"] if _terminal() else ["con0=null,fd:1", "con1=null,fd:2"]
    first_process = [f"init={place}/busybox", "--", "sh", f"{place}/guest.sh", str(place), "outside"]
    return [f"mem={job.memory}M", *_WORDS, *streams, *first_process]


def _terminal() -> str:
    """The size of the terminal that we have, as stty(1) takes it; empty: we have none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    size = shutil.get_terminal_size()
    return f"rows {size.lines} cols {size.columns}"


def _directory_of_memory(size: int) -> str:
    """Where the file that is the guest's memory has room; it has no name there, and only what is used takes any."""
    places = (place for place in ("/dev/shm", "/tmp") if Path(place).is_dir())  # noqa: S108 - no file of a known name
    return next((place for place in places if shutil.disk_usage(place).free >> 20 >= size), os.curdir)


@contextmanager
def _terminal_lent_to(group: int) -> Iterator[None]:
    """A group of processes has our terminal, if we have one; afterwards it is ours, as it was."""
    if not _terminal():
        yield
        return
    before, ours = termios.tcgetattr(sys.stdin), os.tcgetpgrp(sys.stdin.fileno())
    handler = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # to take the terminal back from the background
    os.tcsetpgrp(sys.stdin.fileno(), group)
    try:
        yield
    finally:
        os.tcsetpgrp(sys.stdin.fileno(), ours)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTTOU, handler)
