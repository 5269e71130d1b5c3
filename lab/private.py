"""Namespaces of our own: starts a program again where it cannot reach the machine's network.

Root gets a private network and mount namespace; anybody else a private user
namespace as well, in which they are root. `/run` is an empty tmpfs there, the
loopback interface is up, and everything vanishes with the last process.
"""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000  # linux/sched.h; os.unshare comes with Python 3.12
_OWN_NETWORK: Final = ("unshare", "--net", "--mount")
_OWN_USER_TOO: Final = ("unshare", "--user", "--map-root-user", "--net", "--mount")
_PREPARE: Final = "mount -t tmpfs tmpfs /run && ip link set lo up && "
_CURE: Final = (
    "run it as root, or allow user namespaces (on Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
)


class NamespacesForbidden(Exception):
    """Neither root's nor a user's namespaces can be made here; the message says why."""


def is_private(mark: str) -> bool:
    """Says whether `restart` with this mark started the program."""
    return mark in os.environ


def user_id(value: str) -> int:
    """The user who started the program with this value of the mark, as seen outside of the namespaces."""
    return int(value.split()[0])


def way_in(value: str, process: int) -> str:
    """The command that gets another process of the same user into the namespaces; put what to run behind it.

    The value is the mark's of that process.
    """
    has_own_user_namespace = value.split()[1] != str(_user_namespace(process))
    return f"nsenter -t {process} -m -n" + (" -U --preserve-credentials" if has_own_user_namespace else "")


def restart(mark: str, argv: Sequence[str]) -> NoReturn:
    """Replaces this process by `argv` in namespaces of its own. Raises NamespacesForbidden if none can be made.

    The mark is an environment variable. Each program has its own, so that one can start another inside.
    """
    unshare = own_namespaces()
    os.environ[mark] = f"{os.getuid()} {_user_namespace()}"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(unshare[0], [*unshare, "sh", "-c", _PREPARE + 'exec "$@"', "sh", *argv])  # noqa: S606 - replacing ourselves is the point


def cancel_on_signals() -> None:
    """The task at hand is cancelled by the first signal that asks the program to end; more do not disturb its end."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - a coroutine runs in a task

    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)  # nohup says to stay
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up)

    def end() -> None:
        task.cancel()
        for number in numbers:  # also while the interpreter ends, which gives signals their default effect
            signal.signal(number, signal.SIG_IGN)

    def told(_number: int, _frame: object) -> None:
        with suppress(RuntimeError):  # the loop is over, and the program nearly
            loop.call_soon_threadsafe(end)

    for number in numbers:
        signal.signal(number, told)  # not the loop's handler: that goes with the loop, before the program


def enter_further() -> None:
    """Moves this thread, and what it starts, into a further network and mount namespace within the private ones."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise NamespacesForbidden(f"no namespaces within namespaces can be made here ({os.strerror(code)}): {_CURE}")
    subprocess.run(["sh", "-c", _PREPARE + "true"], check=True)


def find_system_tools() -> None:
    """Puts the directories of `ip` and `iptables` on the PATH: Debian's ordinary users lack them."""
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = [d for d in ("/usr/sbin", "/sbin") if d not in directories]
    os.environ["PATH"] = os.pathsep.join([*directories, *missing])


def _user_namespace(process: int | str = "self") -> int:
    return os.stat(f"/proc/{process}/ns/user").st_ino  # noqa: PTH116 - no file, a namespace


def own_namespaces() -> tuple[str, ...]:
    """The command that runs another one in a private network, root's or a user's. Raises NamespacesForbidden."""
    find_system_tools()
    problem = ""
    for unshare in (_OWN_NETWORK, _OWN_USER_TOO) if os.getuid() == 0 else (_OWN_USER_TOO,):
        try:
            subprocess.run([*unshare, "sh", "-c", _PREPARE + "true"], check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            problem = f"{error.filename} is not installed"
        except subprocess.CalledProcessError as error:
            problem = error.stderr.strip().rpartition("\n")[2]
        else:
            return unshare
    raise NamespacesForbidden(f"no private network namespace can be made here ({problem}): {_CURE}")
