"""The MTUs of paths to peers in a file, so that a start gives routes the same before a packet is lost."""

from pathlib import Path
from typing import Final

from flannelette.services.core.limits import LARGEST_MTU
from flannelette.services.dataplane.peers import PathMtus
from flannelette.services.runtime.state import Record, RecordFile, UnreadableState

_KIND: Final = "path-mtus"


class PathMtuFile:
    """The MTUs of paths, a record a lease. A power cut may cost the file, as it costs the routes."""

    def __init__(self, path: Path | None) -> None:
        self._file = RecordFile(path, _KIND, is_synced=False)

    @property
    def problem(self) -> str:
        """Why the file cannot be written; empty: it can."""
        return self._file.problem

    def read(self) -> PathMtus:
        """What the last process has written; empty for a file that cannot be used."""
        records = self._file.read()
        try:
            rows = [(record.name, int(version), mtu) for record in records for version, mtu in record.json().items()]
        except (UnreadableState, AttributeError, ValueError) as error:
            self._file.reject(error)
            return {}
        return {(n, v): mtu for n, v, mtu in rows if isinstance(mtu, int) and 0 < mtu <= LARGEST_MTU}

    def write(self, path_mtus: PathMtus) -> None:
        """Replaces the file. A disk that is full costs what the next start would know."""
        leases: dict[str, dict[str, int]] = {}
        for (name, version), mtu in path_mtus.items():
            leases.setdefault(name, {})[str(version)] = mtu
        self._file.write(Record.of_json(name, mtus) for name, mtus in leases.items())
