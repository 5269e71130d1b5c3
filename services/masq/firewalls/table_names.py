"""Which legacy tables somebody has used in this network namespace. Asking the kernel for another would make it."""

import os
from contextlib import closing
from typing import Final

from services.core.errors import Unavailable
from services.core.family import Family

_FILES: Final = {4: "ip_tables_names", 6: "ip6_tables_names"}
_SIZE: Final = 4096


class TableNames:
    """Of a family. Opens its file at the first question: each costs one call of the kernel then.

    Every question raises Unavailable: only root may know.
    """

    def __init__(self, family: Family) -> None:
        self._path = f"/proc/thread-self/net/{_FILES[family.version]}"
        self._descriptor = -1
        self._text = b""
        self._names: tuple[str, ...] = ()

    def now(self) -> tuple[str, ...]:
        """As they are now, sorted."""
        text = self._read()
        if text != self._text:
            self._names, self._text = tuple(sorted(text.decode().split())), text
        return self._names

    def close(self) -> None:
        """Frees the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bytes:
        if self._descriptor >= 0:
            try:
                return os.pread(self._descriptor, _SIZE, 0)
            except OSError:  # the module was unloaded, and may be back
                self.close()
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._descriptor, _SIZE, 0)
        except FileNotFoundError:
            return b""  # the module is not loaded: nobody uses any
        except PermissionError:
            raise Unavailable(
                "the kernel tells only root which tables there are: run it as root, with the capabilities NET_ADMIN "
                "and NET_RAW"
            ) from None
        except OSError as error:
            raise Unavailable(f"the kernel does not tell which tables there are: {error.strerror}") from None


def existing_tables(family: Family) -> frozenset[str]:
    """Those of the calling thread's network namespace, once. Raises Unavailable: only root may know."""
    with closing(TableNames(family)) as names:
        return frozenset(names.now())
