"""The network configuration in a file: read when it changes."""

from pathlib import Path

from services.core.errors import InvalidInput
from services.core.network import NetworkConfig, parse_network


class NetworkFile:
    """Looks at the file when asked; the last good configuration stays in force."""

    def __init__(self, path: Path) -> None:
        self.network: NetworkConfig | None = None
        self.error = f"the network configuration {path} has not been read yet"
        """Why the file is not in force; empty if it is."""
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def look(self) -> bool:
        """Reads the file again if it looks different; says whether `network` or `error` changed."""
        before = (self.network, self.error)
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_ctime_ns)
            if seen != self._seen:
                self.network, self.error = parse_network(self._path.read_text(encoding="utf-8")), ""
                self._seen = seen
        except FileNotFoundError:
            self._fail(None, f"there is no network configuration: write flannel's JSON to {self._path}")
        except OSError as error:
            self._fail(None, f"cannot read the network configuration {self._path}: {error.strerror}")
        except InvalidInput as error:
            self._fail(seen, f"{error} (in {self._path})")
        except ValueError:
            self._fail(seen, f"the network configuration {self._path} is not UTF-8 text")
        return (self.network, self.error) != before

    def _fail(self, seen: tuple[int, ...] | None, error: str) -> None:
        self._seen = seen
        self.error = error
