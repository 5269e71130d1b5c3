"""What flanneld's command line means: which services, each with which settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.masq.settings import MasqSettings
from flannelette.services.runtime.networks import suffix_of
from flannelette.services.runtime.process.settings import (
    ProcessSettings,
    flag,
    parse_settings,
    split_flags,
    variable_of,
)
from flannelette.services.runtime.telemetry.metrics import is_served

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
    "prefix of each, and each has three services of its own, in processes of their own. The names of its files end "
    "in -NAME: subnet-NAME.env. Without --network: one network without a name."
)


@dataclass(frozen=True, kw_only=True)
class FlanneldSettings(ProcessSettings):
    """The flags of the program itself, beside those of its services."""

    separate: bool = flag(
        False,
        "Run the lease service, the dataplane and masq in processes of their own. Default: all three are in one "
        "process, which takes less memory.",
    )


@dataclass(frozen=True)
class Service:
    """One of the three services of a network, and how to start it."""

    kind: str
    network: str
    """Empty: the only one, without a name."""
    flags: list[str]
    """The user's flags that it has."""
    settings: ProcessSettings
    """The settings by the user's flags, which say where this program itself serves HTTP."""

    @property
    def name(self) -> str:
        """The service's name in messages: `lease`, or `lease-blue` for the network blue."""
        return f"{self.kind}{suffix_of(self.network)}"

    @property
    def http_socket(self) -> Path:
        """Where a process of its own serves its metrics for this program, if this program serves HTTP."""
        return self.settings.socket_dir / f"{self.name}.http"

    @property
    def arguments(self) -> list[str]:
        """The arguments of a process of its own, which serves HTTP on a unix socket, if this program serves it."""
        served = is_served(self.settings.healthz_ip, self.settings.healthz_port)
        return [*self.flags, *([f"--healthz-ip=unix:{self.http_socket}"] if served else []), "--healthz-port=0"]


@dataclass(frozen=True)
class Command:
    """A command line and an environment, understood."""

    settings: FlanneldSettings
    services: list[Service]
    """Three for each network."""
    warning: str
    """A line about words that are no flags; empty: there are none."""

    @property
    def is_separate(self) -> bool:
        """Whether each service has a process of its own; those of several networks always have."""
        return self.settings.separate or len(self.services) > len(SERVICES)


def command_of(arguments: Sequence[str], environment: Mapping[str, str]) -> Command:
    """The services of each network, each with its share of the flags.

    The store is etcd, as flanneld's, unless the flags say otherwise. This program serves the one HTTP port that the
    flags name. Raises Misconfigured for a flag that no service knows or a value that one refuses, HelpRequested.
    """
    kinds = {**SERVICES, "flanneld": FlanneldSettings}
    defaults, meanings = {"store": _STORE}, {"network": _MEANING}
    shares, warning = split_flags("flannelette flanneld", kinds, arguments, defaults, meanings)
    shares["lease"].insert(0, f"--store={environment.get('FLANNELD_STORE') or _STORE}")  # the last one counts
    prefixes = _prefixes(shares["lease"], environment)
    found = []
    for network, kind in product(prefixes or [""], SERVICES):
        flags = [each for each in shares[kind] if not each.startswith(_NETWORK)]
        flags += [f"{_NETWORK}{network}"] if network else []
        flags += [f"--etcd-prefix={prefixes[network]}"] if kind == "lease" and prefixes.get(network) else []
        for each in _OF_ONE if len(prefixes) > 1 else ():
            if any(word.startswith(f"{each}=") for word in flags) or environment.get(variable_of(each[2:])):
                raise Misconfigured(f"{each} is that of one network, and each network has its own: leave it out")
        found.append(Service(kind, network, flags, parse_settings(SERVICES[kind], "flanneld", flags, environment)))
    own = parse_settings(FlanneldSettings, "flanneld", shares["flanneld"], environment)
    return Command(own, found, warning)


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
