"""Starts our services and the command line from a process that has imported them: 0.02 s of a processor, not 0.5.

`python -m flannelette.services.NAME.main`, also after `ip netns exec NAMESPACE`, is forked from one warm process of
the pytest worker, and so are the services of a lab that a test makes in its own process. Everything else is started
as ever: another program or module, what another command starts (`unshare`), another PYTHONPATH, each process
with FLANNELETTE_COLD=1 in its environment, and all of `make soak`. The process that a test gets is its own child and
the service itself, with its own arguments, environment, files and namespaces. It has imported everything already: a
test of imports, or of memory, needs FLANNELETTE_COLD.
"""

import array
import atexit
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

_SERVICES: Final = ("lease", "dataplane", "masq", "ctl")
_MODULE: Final = re.compile(rf"flannelette\.services\.({'|'.join(_SERVICES)})\.main")
_NETNS: Final = ("ip", "netns", "exec")
_DIE_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")
"""As the lab starts them."""
_KEPT: Final = re.compile(r"PYTHON|LC_|LANG|LD_|GRPC_|TZ$")
"""Variables that a process has read when the modules are imported; only PYTHONPATH may be another text."""
_LARGE: Final = ("flannelette.services.lease.stores.kube", "flannelette.services.cloud")
"""What few tests need takes as long as all the rest."""
_ROOM: Final = 8192
"""Characters of a command line and of an environment, for those who read them below /proc."""
_PLAIN: Final[Mapping[str, tuple[object, ...]]] = {
    **dict.fromkeys(("executable", "preexec_fn", "gid", "gids", "uid"), (None,)),
    "pass_fds": ((), []),
    "shell": (False,),
    "umask": (-1,),
    "process_group": (-1, None),
}
"""What Popen passes to its hook if a test asks for nothing that only a process of its own has."""
_PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PR_SET_MM, _PR_SET_MM_ARG_END, _PR_SET_MM_ENV_END = 35, 9, 11
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MNT_DETACH, _MS_REC, _MS_SLAVE, _MS_BIND = 2, 0x4000, 0x80000, 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Job:
    """A process to start: of which module, with which arguments, and in which named network namespace."""

    module: str
    words: tuple[str, ...]
    namespace: str = ""
    dies_with_us: bool = False
    """SIGKILL ends it when the parent has ended."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More of its environment."""


def job_of(command: Sequence[str], environment: Mapping[str, str], own: Mapping[str, str] = os.environ) -> Job | None:
    """Returns what a command starts if the warm process can be it, else None."""
    namespace, rest = "", tuple(command)
    dies_with_us = rest[:3] == _DIE_WITH_US
    rest = rest[3:] if dies_with_us else rest
    if rest[:3] == _NETNS and len(rest) > 4:
        namespace, rest = rest[3], rest[4:]
    variables = dict[str, str]()
    if rest[:1] == ("env",):
        count = next((at for at, word in enumerate(rest[1:]) if "=" not in word), 0)
        variables, rest = dict(word.split("=", 1) for word in rest[1 : 1 + count]), rest[1 + count :]
        environment = {**environment, **variables}
    if rest[:1] != (sys.executable,):
        return None
    rest = rest[2:] if rest[1:2] == ("-P",) else rest[1:]
    if rest[:1] != ("-m",) or len(rest) < 2 or not _MODULE.fullmatch(rest[1]):
        return None
    is_another = environment.get("PYTHONPATH", "") not in (os.pathsep.join(sys.path), own.get("PYTHONPATH", ""))
    if is_another or environment.get("FLANNELETTE_COLD") or _kept(environment) != _kept(own):
        return None
    return Job(rest[1], rest[2:], namespace, dies_with_us, variables)


def _kept(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _KEPT.match(name) and name != "PYTHONPATH"}


class WarmProcess:
    """The worker's end of its warm process, which is started with the first job."""

    def __init__(self) -> None:
        self.forked = 0
        """How many processes it has become."""
        self._turn = threading.Lock()
        self._socket: socket.socket | None = None

    def fork(self, job: Job, request: dict[str, Any], files: Sequence[int]) -> int:
        """Returns the process id of a new child of this process. OSError: it could not be had."""
        space = f"/run/netns/{job.namespace}" if job.namespace else "/proc/thread-self/ns/net"
        message = json.dumps(asdict(job) | request)
        with self._turn:
            descriptor = os.open(space, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if self._socket is None:
                    self._socket = self._start()
                # A child of a child whose parent has ended is that of the nearest such ancestor.
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
                sent = array.array("i", [*files, descriptor])
                self._socket.sendmsg(
                    [len(message.encode()).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)]
                )
                self._socket.sendall(message.encode())
                answer = self._socket.recv(4)
            finally:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
                os.close(descriptor)
        if len(answer) < 4:
            raise OSError("the warm process has ended")
        self.forked += 1
        return int.from_bytes(answer, "big")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        words = (sys.executable, "-m", __name__, str(theirs.fileno()), "x" * _ROOM)
        with theirs:
            more = {"PYTHONPATH": os.pathsep.join(sys.path), "FLANNELETTE_ROOM": "x" * _ROOM}
            subprocess.Popen(words, pass_fds=[theirs.fileno()], env=os.environ | more)
        atexit.register(ours.close)
        return ours


WARM: Final = WarmProcess()
"""Of this process."""


def install() -> None:
    """From now on this process starts services warm; also asyncio does, which uses the same class."""
    cold = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(cold)

    def execute_child(*given: Any) -> None:
        """The hook of Popen that starts the process; its pipes are made."""
        values = signature.bind(*given).arguments
        process, words, environment = values["self"], values["args"], values["env"]
        environment = dict(os.environ if environment is None else environment)
        job = None
        if isinstance(words, list | tuple) and all(values.get(name) in plain for name, plain in _PLAIN.items()):
            words = list(map(os.fspath, words))
            job = job_of(words, environment)
        if job is None or (job.namespace and not Path("/run/netns", job.namespace).exists()):
            cold(*given)
            return
        request = {
            "environment": {**environment, **job.variables},
            "directory": os.fspath(values["cwd"] or Path.cwd()),
            "session": values["start_new_session"],
            "line": words[words.index(sys.executable) :],
        }
        given_files = (values["p2cread"], values["c2pwrite"], values["errwrite"])
        process.pid = WARM.fork(job, request, [own if each == -1 else each for own, each in enumerate(given_files)])
        process._child_created = True
        process._close_pipe_fds(*(values[name] for name in _PIPES))

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def main() -> None:
    """Forks a process for each job until the worker has ended, and is each of these processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    _import_all()
    gc.collect()
    gc.freeze()
    while True:
        head, files, _, _ = socket.recv_fds(connection, 4, 4)
        if len(head) < 4:
            return
        text = b""
        while len(text) < int.from_bytes(head, "big"):
            text += connection.recv(1 << 20)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            between = os.getpid()
            if grandchild := os.fork():
                os.write(writing, grandchild.to_bytes(4, "big"))
                os._exit(0)
            os.close(reading)
            os.close(writing)
            connection.close()
            request = json.loads(text)
            while os.getppid() == between:  # what asks who its parent is must find the worker
                time.sleep(0.001)
            if request["dies_with_us"]:
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _become(request, files)  # does not return
        os.close(writing)
        for each in files:
            os.close(each)
        answer = os.read(reading, 4)
        os.close(reading)
        os.waitpid(child, 0)  # from here on the other one is the worker's child
        connection.sendall(answer)


def _import_all() -> None:
    for name in _SERVICES:
        package = importlib.import_module(f"flannelette.services.{name}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.startswith(_LARGE):
                with suppress(ImportError):  # a package of an extra, which the machine need not have
                    importlib.import_module(found.name)


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Turns this process into the one that is asked for, and runs it to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, given in enumerate(files[:3]):
        os.dup2(given, number)
    _enter(files[3], request["namespace"])
    os.closerange(3, max(files) + 1)
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    _rename(request["line"], request["environment"])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), line_buffering=os.isatty(0))
    out, errors = (io.BufferedWriter(io.FileIO(number, "w", closefd=False)) for number in (1, 2))
    sys.stdout = io.TextIOWrapper(out, line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(errors, errors="backslashreplace", line_buffering=True)
    module = sys.modules[request["module"]]
    sys.argv = [str(module.__file__), *request["words"]]
    code: object = 0
    try:
        code = module.main()
    except SystemExit as error:
        code = error.code
    except BaseException:  # as the interpreter would
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1 if code else 0)  # to free what all share takes 0.2 s


def _enter(space: int, name: str) -> None:
    """Enters a network namespace; one with a name as `ip netns exec` does, which has its own /sys and /etc."""
    _check(_libc.setns(space, _CLONE_NEWNET))
    if not name:
        return
    _check(_libc.unshare(_CLONE_NEWNS))
    _check(_libc.mount(b"", b"/", b"none", _MS_SLAVE | _MS_REC, None))
    _libc.umount2(b"/sys", _MNT_DETACH)
    _check(_libc.mount(name.encode(), b"/sys", b"sysfs", 0, None))
    for path in Path("/etc/netns", name).glob("*"):
        _check(_libc.mount(os.fsencode(path), os.fsencode(f"/etc/{path.name}"), b"none", _MS_BIND, None))


def _check(code: int) -> None:
    if code:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _rename(line: Sequence[str], environment: Mapping[str, str]) -> None:
    """Makes this the text of /proc/PID/cmdline and environ: it stands where that of the warm process did."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    variables = [f"{name}={value}" for name, value in environment.items()]
    for words, field_number, end_of in ((line, 45, _PR_SET_MM_ARG_END), (variables, 47, _PR_SET_MM_ENV_END)):
        begin, end = int(fields[field_number]), int(fields[field_number + 1])
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        if len(text) < end - begin:
            ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)
            # Without CAP_SYS_RESOURCE null characters follow the words.
            _libc.prctl(_PR_SET_MM, ctypes.c_ulong(end_of), ctypes.c_ulong(begin + len(text)), 0, 0)


if __name__ == "__main__":
    main()
