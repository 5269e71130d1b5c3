"""Distributes flanneld's flags among the three services."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.masq.settings import MasqSettings
from flannelette.services.runtime.process.networks import suffix_of
from flannelette.services.runtime.process.options import ProcessSettings
from flannelette.services.runtime.process.settings import parse_settings, split_flags, variable_of
from flannelette.services.runtime.telemetry.http import is_served

SERVICES: Final[Mapping[str, type[ProcessSettings]]] = {
    "lease": LeaseSettings,
    "dataplane": DataplaneSettings,
    "masq": MasqSettings,
}
_STORE: Final = "etcd"
_NETWORK: Final = "--network="
_OF_ONE: Final = ("--lease-address", "--route-protocol")
"""Flags that no two networks can have alike."""
_MEANING: Final = (
    "Serve the network of this name, as NAME or NAME=PREFIX of its keys in etcd; may be repeated, then with the "
    "prefix of each, and each has three services of its own. The names of its files end in -NAME: subnet-NAME.env. "
    "Without --network: one network without a name."
)


@dataclass(frozen=True)
class Child:
    """One of the three services of a network: how to start it."""

    service: str
    network: str
    """Empty: the only one, without a name."""
    arguments: list[str]
    settings: ProcessSettings
    """The settings by the user's flags, which say where this program itself serves HTTP."""

    @property
    def name(self) -> str:
        """The child's name in messages: `lease`, or `lease-blue` for the network blue."""
        return f"{self.service}{suffix_of(self.network)}"

    @property
    def http_socket(self) -> Path:
        """Where the service serves its metrics for this program, if this program serves HTTP."""
        return self.settings.socket_dir / f"{self.name}.http"


def children(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[list[Child], str]:
    """The three services of each network, each with its share of the flags; and a warning about words that are no
    flags, or none.

    The store is etcd, as flanneld's, unless the flags say otherwise. This program serves the one HTTP port that the
    flags name; the services then serve HTTP on unix sockets, and otherwise not at all. Raises Misconfigured for a
    flag that no service knows or a value that one refuses, HelpRequested.
    """
    shares, warning = split_flags(
        "flannelette flanneld", SERVICES, arguments, {"store": _STORE}, {"network": _MEANING}
    )
    shares["lease"].insert(0, f"--store={environment.get('FLANNELD_STORE') or _STORE}")  # the last one counts
    prefixes = _prefixes(shares["lease"], environment)
    found = []
    for network, service in product(prefixes or [""], SERVICES):
        flags = [each for each in shares[service] if not each.startswith(_NETWORK)]
        flags += [f"{_NETWORK}{network}"] if network else []
        flags += [f"--etcd-prefix={prefixes[network]}"] if service == "lease" and prefixes.get(network) else []
        child = Child(service, network, flags, parse_settings(SERVICES[service], "flanneld", flags, environment))
        for flag in _OF_ONE if len(prefixes) > 1 else ():
            if any(each.startswith(f"{flag}=") for each in flags) or environment.get(variable_of(flag[2:])):
                raise Misconfigured(f"{flag} is that of one network, and each network has its own: leave it out")
        served = is_served(child.settings.healthz_ip, child.settings.healthz_port)
        child.arguments.extend((f"--healthz-ip=unix:{child.http_socket}",) if served else ())
        child.arguments.append("--healthz-port=0")
        found.append(child)
    return found, warning


def _prefixes(flags: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """The prefix in etcd of each network with a name; empty for the only one: as --etcd-prefix says."""
    said = [each.removeprefix(_NETWORK) for each in flags if each.startswith(_NETWORK)]
    said = said or list(filter(None, environment.get("FLANNELD_NETWORK", "").split(",")))
    rows = [text.partition("=") for text in said]
    for name, _, prefix in rows if len(rows) > 1 else ():
        if not prefix:
            raise Misconfigured(
                f"--network {name} is one of several: write --network {name}=PREFIX, that of its keys in etcd"
            )
    if len({name for name, _, _ in rows}) < len(rows):
        raise Misconfigured("--network names a network twice: each network once")
    return {name: prefix for name, _, prefix in rows}
