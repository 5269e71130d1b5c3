"""Why a file cannot be read: which user lacks the right to which part of its path, and what to do."""

import os
import pwd
import stat
from pathlib import Path
from typing import Final

_OURS: Final = Path("/etc/flannelette")


def why_unreadable(path: Path, error: OSError) -> str:
    """A clause that follows the path: `cannot be read by the user flannelette-lease, ...`, and a command for it."""
    if not isinstance(error, PermissionError):
        return f"cannot be read: {error.strerror}"
    user = user_name(os.geteuid())
    closed = next((each for each in (*reversed(path.absolute().parents), path) if not _is_open(each, path)), path)
    return f"cannot be read by the user {user}{_owner_of(closed, path)}: {_cure(path, user)}"


def user_name(number: int) -> str:
    """The name of a user; the number, if it has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _is_open(part: Path, path: Path) -> bool:
    return os.access(part, os.R_OK if part == path else os.X_OK, effective_ids=True)


def _owner_of(part: Path, path: Path) -> str:
    try:
        found = part.stat()
    except OSError:
        return ""
    which = "which" if part == path else f"as {part}"
    return f", {which} belongs to {user_name(found.st_uid)} with mode {stat.S_IMODE(found.st_mode):04o}"


def _cure(path: Path, user: str) -> str:
    if _OURS in path.absolute().parents:
        return f"`chown {user} {path}`"
    return f"give it a copy, `install -m 0400 -o {user} {path} {_OURS}/`, and name that"
