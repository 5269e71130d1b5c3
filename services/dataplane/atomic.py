"""Files that other programs read while we write them."""

import os
from pathlib import Path


def replace_file(path: Path, text: str, mode: int) -> bool:
    """Guarantee: a reader finds the old text or the new one, whole. Returns whether the text was another one.

    A file with this text is not touched. A missing directory is made, with mode 0755. What lies beside the file for a
    moment is called `.NAME.new`, which no reader of the directory takes for a configuration. Raises OSError.
    """
    try:
        if path.read_text() == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass  # missing or unreadable: it is written anew
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)  # whatever the umask says: the readers may be other users
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(mode)
    with fresh.open() as file:
        os.fsync(file.fileno())
    fresh.replace(path)
    return True
