"""Where each service of a node has its socket, so that one without rights cannot reach the others (ADR 58)."""

from pathlib import Path
from typing import Final

SOCKET_DIR: Final = Path("/run/flannelette")
"""Directory of the sockets of the dataplane and masq. Who can enter it can have them change the kernel."""
DEFAULT: Final = "default"
"""Name of the network that has the files, sockets and marks of a network without a name."""
_APART: Final = ("lease", "cloud")
"""Services without rights on the node, which cannot enter that directory."""


def directory_of(service: str, socket_dir: Path) -> Path:
    """Where a service has its socket and what belongs to it, for this `--socket-dir`.

    Beside the default directory, a service without rights on the node has one of its own, which its deployment makes:
    `/run/flannelette-lease`. Where that is missing, as in a deployment of 0.2, all services are in one directory.
    """
    own = socket_dir.with_name(f"{socket_dir.name}-{service}")
    return own if service in _APART and socket_dir == SOCKET_DIR and own.is_dir() else socket_dir


def socket_address(socket_dir: Path, service: str, suffix: str = "") -> str:
    """The default address of a service; `suffix` is that of its network."""
    return f"unix:{directory_of(service, socket_dir) / service}{suffix}.sock"


def lock_of(path: Path) -> Path:
    """The lock file of a unix socket."""
    return Path(f"{path}.lock")


def moved_address(address: str) -> str:
    """A service's address; the socket that 0.2 had in the common directory is where it is by default now."""
    path = Path(address.removeprefix("unix:"))
    service = path.name.partition("-")[0].partition(".")[0]
    if not address.startswith("unix:") or path.parent != SOCKET_DIR or service not in _APART:
        return address
    return f"unix:{directory_of(service, SOCKET_DIR) / path.name}"
