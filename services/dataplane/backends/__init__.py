"""The backends that are built, by flannel's name."""

from collections.abc import Callable
from typing import Final

from services.core.errors import InvalidInput
from services.core.gojson import GoObject
from services.core.network import NetworkConfig
from services.dataplane.backends.backend import Backend
from services.dataplane.backends.host_gw import HostGw
from services.dataplane.backends.vxlan import parse_vxlan

Parse = Callable[[GoObject], tuple[Backend, list[str]]]

BACKENDS: Final[dict[str, Parse]] = {
    "vxlan": parse_vxlan,
    "host-gw": lambda options: (HostGw(), []),
}


def make_backend(network: NetworkConfig) -> tuple[Backend, list[str]]:
    """The backend of a network, with warnings. Raises InvalidInput, also if this version does not support it."""
    parse = BACKENDS.get(network.backend_type)
    if parse is None:
        raise InvalidInput(
            f"backend {network.backend_type!r} is not supported by this version; use {' or '.join(sorted(BACKENDS))}"
        )
    return parse(network.backend_options)
