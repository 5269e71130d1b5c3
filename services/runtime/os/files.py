"""Files: replaced atomically, so that a reader sees the old or the new content, also after a power cut; why one
cannot be read (which user lacks the right to which part of its path), and what to do; and events of a file or a
directory by inotify(7), without polling.
"""

import asyncio
import ctypes
import errno
import os
import pwd
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final


def replace_file(path: Path, text: str, mode: int) -> bool:
    """Replaces the text of a file; returns whether it differed. Guarantee: a reader sees the old or the new text.

    A file with the same text is not touched. A missing directory is made, with mode 0755. Raises OSError.
    """
    try:
        if path.read_text() == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass  # missing or unreadable: write it
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)  # independent of the umask: readers may be other users
    replace_bytes(path, [text.encode()], mode)
    return True


def temporary(path: Path) -> Path:
    """The file that is written first, and renamed: a process that is killed meanwhile leaves it."""
    return path.with_name(f".{path.name}.new")


def replace_bytes(
    path: Path, parts: Iterable[bytes], mode: int, *, is_synced: bool = True, former: Path | None = None
) -> None:
    """Replaces a file in an existing directory, and syncs both to disk. Raises OSError.

    The temporary file `.NAME.new` has a name that no reader of the directory takes for a configuration. It has no
    more readers than the file itself, and is deleted if the disk is full. What the file was is at `former` after it,
    if that is given: at no moment is there none, unless it was a directory.
    """
    fresh = temporary(path)
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fchmod(file.fileno(), mode)  # independent of the umask
            if is_synced:
                os.fsync(file.fileno())
        if former is not None:
            _keep(path, former)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    if is_synced:
        _sync_directory(path.parent)


def _keep(path: Path, former: Path) -> None:
    """Gives what is at `path` the name `former` too."""
    former.unlink(missing_ok=True)
    try:
        os.link(path, former, follow_symlinks=False)
    except FileNotFoundError:
        pass
    except OSError:  # a directory, or a filesystem without links
        path.replace(former)


def _sync_directory(directory: Path) -> None:
    """Syncs the names in a directory: else a power cut may take back the rename."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a filesystem that syncs no directories
            raise
    finally:
        os.close(descriptor)


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


CLOSED: Final = 0x18  # IN_CLOSE_WRITE | IN_CLOSE_NOWRITE
"""A process has closed the file."""
REMOVED: Final = 0x200 | 0x40  # IN_DELETE | IN_MOVED_FROM
"""A file of the directory was deleted or moved away."""
_GONE: Final = 0xC00 | 0x8000  # IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED
_EVENT: Final = struct.Struct("=iIII")
_BUFFER: Final = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """A watch of one path for some events, once opened. Events before `next` are kept; several count as one."""

    def __init__(self, path: Path, events: int) -> None:
        self._path = path
        self._events = events
        self._descriptor: int | None = None

    def open(self) -> bool:
        """Opens the watch if it is closed. False: the path is missing, or access is denied."""
        if self._descriptor is None:
            descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if descriptor < 0:
                return False
            if _libc.inotify_add_watch(descriptor, os.fsencode(self._path), self._events | _GONE) < 0:
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    async def next(self) -> None:
        """Waits for an event; returns at once if the watch is closed. Closes the watch if the path itself is gone."""
        if self._descriptor is None:
            return
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)
        if _has_ended(os.read(self._descriptor, _BUFFER)):
            self.close()

    def close(self) -> None:
        """Ends the watch and closes its descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _has_ended(data: bytes) -> bool:
    """Whether these events say that the watched path is gone."""
    start, masks = 0, 0
    while start < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, start)
        start, masks = start + _EVENT.size + length, masks | mask
    return bool(masks & _GONE)
