"""Flags and variables of the services, some of which have a grammar of their own.

A case is the name of a service, and in each further line an argument, or a variable: FLANNELD_NAME=VALUE.
"""

import os
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from flannelette.services.cloud.main import CloudSettings
from flannelette.services.core.errors import Misconfigured
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.masq.settings import MasqSettings
from flannelette.services.runtime.networks import NAMED_PROTOCOLS
from flannelette.services.runtime.process.settings import HelpRequested, listen_addresses, parse_settings
from tests.examples.leases import make_lease

_KINDS: Final[dict[str, Any]] = {
    "lease": LeaseSettings,
    "dataplane": DataplaneSettings,
    "masq": MasqSettings,
    "cloud": CloudSettings,
}
_PLACE: Final = Path("/run/flannel/subnet.env")
_LEASE: Final = make_lease(1)


def command_line(data: bytes) -> None:
    """Refused by Misconfigured; or the network has files of its own, and clusters have ranges of their own."""
    name, *words = os.fsdecode(data.replace(b"\0", b"")).split("\n")  # no argument has a NUL
    service = name if name in _KINDS else sorted(_KINDS)[crc32(name.encode(errors="surrogateescape")) % len(_KINDS)]
    variables = dict(word.split("=", 1) for word in words if word.startswith("FLANNELD_") and "=" in word)
    arguments = [word for word in words if not word.startswith("FLANNELD_")]
    try:
        settings = parse_settings(_KINDS[service], f"flannelette-{service}", arguments, variables)
    except (Misconfigured, HelpRequested) as error:
        str(error).encode(errors="backslashreplace")  # as stderr does
        return
    listen_addresses(settings, service)
    if service == "lease":
        _clusters(settings)
    elif service == "cloud":
        assert settings.lease_service
    else:
        _network(settings)


def _network(settings: Any) -> None:
    network = settings.node_network
    assert network.place(_PLACE).parent == _PLACE.parent
    assert network.lease_address
    assert network.route_protocol is None or network.route_protocol in NAMED_PROTOCOLS
    if isinstance(settings, MasqSettings):
        assert settings.rules.nft_table == f"flannelette{network.suffix}"
        return
    own = settings.in_network()
    assert own.node_network == network
    own.limits()
    own.interface_choice()
    own.node_files({})


def _clusters(settings: LeaseSettings) -> None:
    settings.exports.shows(_LEASE)
    for each in settings.imports:
        assert each.address
        assert each.allow
        assert len(each.files) in (0, 3)
        each.refusal(_LEASE, ())
        each.imported(_LEASE)
    for one, other in combinations(settings.imports, 2):
        assert one.name != other.name
        assert not any(a.version == b.version and a.overlaps(b) for a in one.allow for b in other.allow)
