"""Which of flanneld's flags goes to which service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.dataplane.settings import DataplaneSettings
from services.lease.settings import LeaseSettings
from services.masq.settings import MasqSettings
from services.runtime.options import ProcessSettings
from services.runtime.settings import parse_settings, split_flags

SERVICES: Final[Mapping[str, type[ProcessSettings]]] = {
    "lease": LeaseSettings,
    "dataplane": DataplaneSettings,
    "masq": MasqSettings,
}
_STORE: Final = "etcd"


@dataclass(frozen=True)
class Child:
    """A service, as it shall be started."""

    name: str
    arguments: list[str]
    settings: ProcessSettings
    """What it will make of them, before ours."""


def children(arguments: Sequence[str], environment: Mapping[str, str]) -> list[Child]:
    """The services, each with those of the flags that are its own.

    The store is etcd, as flanneld's, unless the flags say otherwise. One port for probes is one for all three, so
    the children get none. Raises Misconfigured for what no service knows or one refuses, HelpRequested.
    """
    shares = split_flags("flannelette flanneld", SERVICES, arguments, {"store": _STORE})
    shares["lease"].insert(0, f"--store={environment.get('FLANNELD_STORE') or _STORE}")  # the last one counts
    return [
        Child(name, [*shares[name], "--healthz-port=0"], parse_settings(kind, "flanneld", shares[name], environment))
        for name, kind in SERVICES.items()
    ]
