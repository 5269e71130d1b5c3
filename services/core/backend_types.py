"""The backend types that some flannel has had, and what all services must know of each. Pure.

How a backend works is in services/dataplane/backends; which types are built is decided there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from services.core.errors import InvalidInput
from services.core.family import IPV4, Family
from services.core.formats.gojson import GoObject
from services.core.limits import LARGEST_MTU, SMALLEST_MTU

_UDP: Final = 17
_IPIP: Final = 4
VXLAN_PORT: Final = 8472
"""Linux's own default (drivers/net/vxlan), older than IANA's 4789; flannel's `Port` 0."""
IPIP_DEVICE: Final = "flannel.ipip"
LARGEST_VNI: Final = 2**24 - 1


@dataclass(frozen=True, slots=True)
class Tunnel:
    """How a backend's packets look from outside: on the node's devices, and between the nodes."""

    devices: dict[int, str]
    """The overlay device by IP version; empty: which device a packet takes depends on the routes."""
    protocol: int
    """The IP protocol that carries packets between the nodes."""
    port: int = 0
    """Its destination port; 0: the protocol has none."""

    @property
    def text(self) -> str:
        """`UDP port 8472`."""
        return f"UDP port {self.port}" if self.protocol == _UDP else f"IP protocol {self.protocol}"


@dataclass(frozen=True, slots=True)
class BackendType:
    """What every service knows of a backend."""

    carries_ipv6: bool = True
    """Without: IPv6 of a network that enables both is left out, and a network of IPv6 alone refused."""
    needs_data: bool = False
    """On Kubernetes a node publishes a family only with data in it."""
    publishes_ipv6: bool = False
    """On Kubernetes a node publishes an IPv6 address."""
    check: Callable[[GoObject, tuple[Family, ...]], None] = lambda options, families: None
    """Raises InvalidInput for options that no node could use in these families."""
    tunnel: Callable[[GoObject], Tunnel | None] = lambda options: None
    """Raises InvalidInput. None: pods' packets travel as they are."""


def _check_vxlan(options: GoObject, families: tuple[Family, ...]) -> None:
    """An MTU of the underlay that leaves a VXLAN device too little."""
    mtu = options.number("MTU", most=LARGEST_MTU)
    left = max(mtu - IPV4.vxlan_overhead, 0)
    for family in families if mtu else ():
        least = SMALLEST_MTU[family.version] + IPV4.vxlan_overhead  # flannel takes that off in both families
        if mtu < least:
            raise InvalidInput(
                f"MTU {mtu} of Backend in the network configuration leaves {left} bytes for packets, "
                f"and {family} needs {SMALLEST_MTU[family.version]}: write at least {least}, or leave MTU out"
            )


def _vxlan_tunnel(options: GoObject) -> Tunnel:
    vni = options.number("VNI", 1, most=LARGEST_VNI)
    devices = {} if options.flag("DirectRouting") else {4: f"flannel.{vni}", 6: f"flannel-v6.{vni}"}
    return Tunnel(devices, _UDP, options.number("Port", most=65535) or VXLAN_PORT)


def _check_ipip(options: GoObject, families: tuple[Family, ...]) -> None:
    options.flag("DirectRouting")


def _ipip_tunnel(options: GoObject) -> Tunnel:
    return Tunnel({} if options.flag("DirectRouting") else {4: IPIP_DEVICE}, _IPIP)


BACKEND_TYPES: Final[dict[str, BackendType]] = {
    "vxlan": BackendType(needs_data=True, publishes_ipv6=True, check=_check_vxlan, tunnel=_vxlan_tunnel),
    "host-gw": BackendType(publishes_ipv6=True),
    "ipip": BackendType(carries_ipv6=False, check=_check_ipip, tunnel=_ipip_tunnel),
    "alloc": BackendType(carries_ipv6=False),
    "wireguard": BackendType(needs_data=True, publishes_ipv6=True),
    "extension": BackendType(publishes_ipv6=True),
    "udp": BackendType(carries_ipv6=False),
    "ipsec": BackendType(carries_ipv6=False),
    "aws-vpc": BackendType(carries_ipv6=False),
    "gce": BackendType(carries_ipv6=False),
    "ali-vpc": BackendType(carries_ipv6=False),
    "tencent-vpc": BackendType(carries_ipv6=False),
}
"""By flannel's `Type`, in lower case."""
