"""A view of the machine's files in which what a page says to write can be written, and nobody else sees it.

What is there is there too: directories are overlaid by ones in memory, or empty.
"""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Self

from tests.paths import ROOT

_MAKE: Final = r"""
mount -t tmpfs tmpfs "$1"
number=0
over() {
    number=$((number + 1))
    mkdir "$1/$number" "$1/$number.work"
    mount -t overlay -o "lowerdir=$2,upperdir=$1/$number,workdir=$1/$number.work" overlay "$2"
}
for each in $2; do
    over "$1" "$each"
done
for each in $3; do # so that other users reach Python and the sources, wherever they are
    over "$1" "$each"
    chmod o+x "$each"
done
for each in $4; do
    mount -t tmpfs tmpfs "$each"
done
echo made
exec sleep infinity
"""


class OwnFiles:
    """A mount namespace; what runs in it is in the calling thread's network namespace."""

    def __init__(self, directory: Path, *, over: Sequence[str], empty: Sequence[str], opened: bool = False) -> None:
        """Overlays some directories and empties others; `opened`: for users who are not root, too."""
        closed = _closed() if opened else ()
        (directory / "upper").mkdir()
        lists = (" ".join(map(str, paths)) for paths in (over, closed, empty))
        self._holder = subprocess.Popen(
            ["unshare", "-m", "sh", "-euc", _MAKE, "sh", str(directory / "upper"), *lists], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"made\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    def command(self, *command: str, place: Path = ROOT) -> tuple[str, ...]:
        """The same command, to run inside; it becomes the command itself."""
        return ("nsenter", f"--target={self._holder.pid}", "--mount", f"--wd={place}", *command)


def _closed() -> Iterable[Path]:
    """The directories of Python and of the sources that are not for everybody."""
    python = Path(sys.executable)
    needed = {*python.parents, *python.resolve().parents, ROOT, *ROOT.parents}
    return sorted(path for path in needed if not path.stat().st_mode & 0o001)
