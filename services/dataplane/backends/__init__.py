"""One file for each backend: pure answers to what a lease, the underlay and the network configuration ask for.

May use links/, underlay/ and netlink/'s objects; reads and changes nothing. `docs/architecture.md` says how a backend
is added.
"""

from typing import Final

from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends.alloc import Alloc, CloudRoutes
from flannelette.services.dataplane.backends.backend import Backend, Backends
from flannelette.services.dataplane.backends.extension import Extension
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.ipip import Ipip
from flannelette.services.dataplane.backends.ipsec import Ipsec
from flannelette.services.dataplane.backends.udp import Udp
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.backends.wireguard import Wireguard

BACKENDS: Final[dict[str, type[Backend]]] = {
    "ali-vpc": CloudRoutes,
    "alloc": Alloc,
    "aws-vpc": CloudRoutes,
    "extension": Extension,
    "gce": CloudRoutes,
    "host-gw": HostGw,
    "ipip": Ipip,
    "ipsec": Ipsec,
    "tencent-vpc": CloudRoutes,
    "udp": Udp,
    "vxlan": Vxlan,
    "wireguard": Wireguard,
}
"""All backends that a network may have, by flannel's name."""


def make_backend(network: NetworkConfig) -> Backend:
    """The backend of a network. Raises InvalidInput, naming the option."""
    return BACKENDS[network.backend_type].of(network.options)


_LINK_KINDS: Final = tuple(kind for backend in BACKENDS.values() for kind in backend.link_kinds)

BUILT: Final = Backends(make_backend, _LINK_KINDS)
