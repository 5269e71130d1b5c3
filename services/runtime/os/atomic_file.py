"""Files that other programs, or we ourselves after a power cut, read while we write them."""

import os
from collections.abc import Iterable
from pathlib import Path


def replace_file(path: Path, text: str, mode: int) -> bool:
    """Guarantee: a reader finds the old text or the new one, whole. Returns whether the text was another one.

    A file with this text is not touched. A missing directory is made, with mode 0755. Raises OSError.
    """
    try:
        if path.read_text() == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass  # missing or unreadable: it is written anew
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)  # whatever the umask says: the readers may be other users
    replace_bytes(path, [text.encode()], mode)
    return True


def replace_bytes(path: Path, parts: Iterable[bytes], mode: int) -> None:
    """The same for bytes, always, in a directory that is there. On disk when it returns. Raises OSError.

    What lies beside the file for a moment is called `.NAME.new`, which no reader of the directory takes for a
    configuration. It is never open to more readers than the file, and does not stay where the disk is full.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fchmod(file.fileno(), mode)  # whatever the umask says
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
