"""The programs that `make tools` builds for tests: where they are, and waiting for those that are being built.

`make test` builds what is missing while the tests run that need none of it; with ARGS= only what a test waits for
here (lab/tools.sh).
"""

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import pytest

from lab.vm import is_guest

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "flannelette")
_REFRESH_SECONDS: Final = 0.5


def find_tool(name: str) -> str:
    """The program that `make tools` built, else one on the PATH; without it the test is skipped (`lacking`)."""
    path = cached(f"bin/{name}", name)
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        lacking(f"there is no {name}: `make tools` gets it, where Go is, and says why it cannot")
    return found


def lacking(reason: str) -> NoReturn:
    """Skips the test; in the VM it fails, for tests are run there because it has what this machine lacks."""
    if is_guest():
        pytest.fail(reason)
    pytest.skip(reason)


def cached(path: str, tool: str) -> Path:
    """A place below the cache, once nobody is about to make it with that tool; perhaps it is not there."""
    while tool in pending_tools():
        with suppress(FileNotFoundError):
            (CACHE / "tools.wanted" / tool).touch()
        time.sleep(_REFRESH_SECONDS)
    return CACHE / path


def pending_tools() -> frozenset[str]:
    """What a running `make tools` has not finished yet."""
    try:
        with (CACHE / "tools.lock").open() as lock:
            names = frozenset(path.name for path in (CACHE / "tools.todo").iterdir())
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return frozenset()  # nobody is at work
    except BlockingIOError:
        return names
    except OSError:
        return frozenset()
