"""What programs make of their command lines and environments: arguments go in, settings or a refusal come out."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_type_hints

from flannelette.services.cloud.main import CloudSettings
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.flanneld.command import command_of
from flannelette.services.lease.main import etcd_settings
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.lease.stores.etcd.settings import read_tls_files
from flannelette.services.masq.settings import MasqSettings
from flannelette.services.runtime.process.settings import ProcessSettings, parse_settings, usage

_SETTINGS: Final[Mapping[str, type[ProcessSettings]]] = {
    "lease": LeaseSettings,
    "dataplane": DataplaneSettings,
    "masq": MasqSettings,
    "cloud": CloudSettings,
}
SERVICES: Final = tuple(_SETTINGS)
ON_A_NODE: Final = SERVICES[:3]
"""Those that `flannelette flanneld` starts."""


def parsed(service: str, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Any:
    """The settings of a service that is started like that. Raises Misconfigured."""
    return parse_settings(_SETTINGS[service], f"flannelette-{service}", arguments, environment or {})


def help_of(service: str) -> str:
    """What `--help` prints."""
    return usage(f"flannelette-{service}", _SETTINGS[service])


def flags_of(service: str = "") -> dict[str, type]:
    """The flags that a service takes and the types of their values; empty: those that every service takes."""
    kind = _SETTINGS[service] if service else ProcessSettings
    types = get_type_hints(kind)
    fields = (field for field in dataclasses.fields(kind) if field.metadata)
    return {field.metadata["flag"] or field.name.replace("_", "-"): types[field.name] for field in fields}


def children_of(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[list[Any], str]:
    """What `flannelette flanneld` starts, and its warning. Raises Misconfigured."""
    command = command_of(arguments, environment or {})
    return list(command.services), command.warning


def etcd_of(*arguments: str) -> Any:
    """Where `flannelette-lease --store=etcd` looks for etcd. Raises Misconfigured."""
    return etcd_settings(parsed("lease", ("--store=etcd", *arguments)))


def tls_files_of(*arguments: str) -> Any:
    """The files with which it connects to etcd, read. Raises Misconfigured."""
    return read_tls_files(etcd_of(*arguments))
