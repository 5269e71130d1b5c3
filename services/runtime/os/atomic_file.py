"""Atomic replacement of files: a reader sees the old or the new content, also after a power cut."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path


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
