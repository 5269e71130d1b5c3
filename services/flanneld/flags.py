"""Which of flanneld's flags goes to which service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services.dataplane.settings import DataplaneSettings
from services.lease.settings import LeaseSettings
from services.masq.settings import MasqSettings
from services.runtime.process.options import ProcessSettings
from services.runtime.process.settings import parse_settings, split_flags
from services.runtime.telemetry.http import is_served

SERVICES: Final[Mapping[str, type[ProcessSettings]]] = {
    "lease": LeaseSettings,
    "dataplane": DataplaneSettings,
    "masq": MasqSettings,
}
_STORE: Final = "etcd"


@dataclass(frozen=True)
class Child:
    """One of the three services: how to start it."""

    name: str
    arguments: list[str]
    settings: ProcessSettings
    """The settings by the user's flags, which say where this program itself serves HTTP."""

    @property
    def http_socket(self) -> Path:
        """Where the service serves its metrics for this program, if this program serves HTTP."""
        return self.settings.socket_dir / f"{self.name}.http"


def children(arguments: Sequence[str], environment: Mapping[str, str]) -> list[Child]:
    """The three services, each with its share of the flags.

    The store is etcd, as flanneld's, unless the flags say otherwise. This program serves the one HTTP port that the
    flags name; the services then serve HTTP on unix sockets, and otherwise not at all. Raises Misconfigured for a
    flag that no service knows or a value that one refuses, HelpRequested.
    """
    shares = split_flags("flannelette flanneld", SERVICES, arguments, {"store": _STORE})
    shares["lease"].insert(0, f"--store={environment.get('FLANNELD_STORE') or _STORE}")  # the last one counts
    found = []
    for name, kind in SERVICES.items():
        child = Child(name, shares[name], parse_settings(kind, "flanneld", shares[name], environment))
        served = is_served(child.settings.healthz_ip, child.settings.healthz_port)
        child.arguments.extend((f"--healthz-ip=unix:{child.http_socket}",) if served else ())
        child.arguments.append("--healthz-port=0")
        found.append(child)
    return found
