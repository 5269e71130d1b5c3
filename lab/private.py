"""Namespaces of our own: starts this program again where the machine's network cannot be reached.

Root gets a private network and mount namespace; anybody else a private user
namespace as well, in which they are root. `/run` is an empty tmpfs there, the
loopback interface is up, and everything vanishes with the last process.
"""

import os
import subprocess
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK = "FLANNELETTE_PRIVATE"
"""Set to the caller's user id in the environment of the program started again."""

_OWN_NETWORK = ("unshare", "--net", "--mount")
_OWN_USER_TOO = ("unshare", "--user", "--map-root-user", "--net", "--mount")
_PREPARE = "mount -t tmpfs tmpfs /run && ip link set lo up && "
_CURE = "run it as root, or allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu)"


class NamespacesForbidden(Exception):
    """Neither root's nor a user's namespaces can be made here; the message says why."""


def user_id() -> int:
    """The user who started the program, as seen outside of the namespaces."""
    return int(os.environ.get(MARK) or os.getuid())


def is_private() -> bool:
    """Says whether `restart` started the program."""
    return MARK in os.environ


def restart(argv: "Sequence[str]") -> NoReturn:
    """Replaces this process by `argv` in namespaces of its own. NamespacesForbidden if none can be made."""
    unshare = _what_works()
    os.environ[MARK] = str(user_id())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(unshare[0], [*unshare, "sh", "-c", _PREPARE + 'exec "$@"', "sh", *argv])  # noqa: S606  (replacing ourselves is the point)


def find_system_tools() -> None:
    """Puts the directories of `ip` and `iptables` on the PATH: Debian's ordinary users lack them."""
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = [d for d in ("/usr/sbin", "/sbin") if d not in directories]
    os.environ["PATH"] = os.pathsep.join([*directories, *missing])


def _what_works() -> tuple[str, ...]:
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
