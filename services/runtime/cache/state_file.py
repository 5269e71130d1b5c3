"""The file `SERVICE.state` in --state-dir: locked by one process, and replaced atomically."""

import os
from pathlib import Path
from typing import Self

from flannelette.services.core.limits import nearest_time
from flannelette.services.runtime.cache.node_state import NodeState, kind_of, older_of, state_in
from flannelette.services.runtime.state import RecordFile, UnreadableState, locked
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


class StateFile(RecordFile):
    """The file of the cached state. Without a usable directory nothing is stored, and the reason is logged once.

    The file is locked while this process lives: of two dataplanes with the same directory, the second stores and
    reads nothing, because the first may run in another network namespace. Different services may share a directory.
    """

    def __init__(self, directory: str, service: str, machine: str = "") -> None:
        super().__init__(Path(directory, f"{service}.state"), kind_of(service), older=older_of(service))
        self.machine = machine
        """The token of this machine: the state of another one is refused."""
        self._lock = -1
        if directory:
            self._open(Path(directory), service)

    @property
    def is_usable(self) -> bool:
        """Whether the state is written to the file."""
        return self._lock >= 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the file's lock, if it is held."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def state_of(self, node: str) -> tuple[NodeState, float] | None:
        """The cached state, and the Unix time at which it was last confirmed; None if there is none.

        A file that cannot be used stays where it is.
        """
        if not self.is_usable or not (records := self.read()):
            return None
        try:
            return state_in(records, node, self.machine), nearest_time(self.path.stat().st_mtime)
        except (OSError, UnreadableState) as error:
            self.reject(error)
            return None

    def _open(self, directory: Path, service: str) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = locked(directory / f".{service}.lock")  # the file itself is replaced by every write
            self.clean()
        except BlockingIOError:
            self._log_unused(f"another {service} keeps its state in {directory}: give this one its own --state-dir")
        except OSError as error:
            if os.path.lexists(self.path):
                self.note(f"cannot write {self.path}: {error.strerror}")
            else:
                self._log_unused(f"cannot use {directory}: {error.strerror}")

    def _log_unused(self, reason: str) -> None:
        log.warning("no state is kept for a reboot during an outage", reason=reason)
