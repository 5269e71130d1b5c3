"""Why a socket cannot be reached, and what to do about it, in plain words."""

import grp
import os
import pwd
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.ctl.targets import Target

_LONGEST_PATH: Final = 107
"""sun_path of unix(7) is 108 bytes with its closing zero."""
_CONNECT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with an address, one sentence."""

    sentence: str
    missing: bool = False
    """There is no socket at all: the service does not run here, or never did."""


def diagnose(target: Target, details: str) -> Diagnosis:
    """Tries the address once more, without gRPC, to learn why it failed; `details` is what gRPC said."""
    if target.path is None:
        return Diagnosis(target.transport.why_not(target.address, target.program, details))
    return _diagnose_path(target, target.path, details)


def _diagnose_path(target: Target, path: Path, details: str) -> Diagnosis:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        return Diagnosis(f"the socket path {path} is longer than the {_LONGEST_PATH} bytes that Linux allows")
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return Diagnosis(f"{path} is not a socket: check {_option(target)}")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(str(path))
    except (FileNotFoundError, NotADirectoryError):
        return _missing(target, path)
    except PermissionError:
        return Diagnosis(_denied(path))
    except ConnectionRefusedError:
        return Diagnosis(f"nobody listens on {path}: {target.program} was killed; start it again")
    except OSError as error:
        return Diagnosis(f"cannot connect to {path}: {error.strerror or error}")
    return Diagnosis(f"{target.program} at {path} does not answer: {details}")


def _missing(target: Target, path: Path) -> Diagnosis:
    if Path(f"{path}.lock").exists():  # a service leaves its lock file when it stops
        return Diagnosis(f"{target.program} has stopped, its socket {path} is gone: start it again", missing=True)
    if not path.parent.is_dir():
        return Diagnosis(
            f"there is no directory {path.parent}: no service has run here, or it uses another --socket-dir",
            missing=True,
        )
    return Diagnosis(f"there is no socket {path}: start {target.program}, or check {_option(target)}", missing=True)


def _option(target: Target) -> str:
    return f"--{target.service}" if target.named else "--socket-dir"


def _denied(path: Path) -> str:
    """Names the first thing on the way that is closed to us, and who may pass."""
    way = [*reversed(path.absolute().parents), path.absolute()]
    closed = next((p for p in way if not os.access(p, os.X_OK if p != way[-1] else os.W_OK)), path)
    kind = "socket" if closed == way[-1] else "directory"
    status = closed.stat()
    return f"no permission for the {kind} {closed}: {who_may(status.st_mode, status.st_uid, status.st_gid)}"


def who_may(mode: int, user_id: int, group_id: int) -> str:
    """Who has access to something of this mode and owner, and how to become one of them."""
    if mode & stat.S_IRWXG and group_id != 0:
        group = _group_name(group_id)
        if not group:
            return f"group {group_id} may; use sudo, or run this as a user of group {group_id}"
        return f"group {group} may; use sudo, or join it (sudo usermod -aG {group} $USER, then log in again)"
    if user_id == 0:
        return "only root may; use sudo"
    return f"only user {_user_name(user_id) or user_id} may; use sudo"


def _group_name(group_id: int) -> str:
    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return ""


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return ""
