"""How a network looks from outside: its overlay devices by name, and what carries packets between nodes.

Pure. On a host with several networks each has devices of its own, whose names follow from the network's.
"""

from dataclasses import dataclass
from typing import Final
from zlib import crc32

UDP: Final = 17
IPIP_DEVICE: Final = "flannel.ipip"
IPSEC_DEVICE: Final = "flannel.ipsec"
FOU_DEVICE: Final = "flannel.fou"
"""A tunnel of the kernel, which must not take the name that a running flanneld's device has."""
IPSEC_MARK: Final = (11, 0x666C)
"""Reqid and priority of our IPsec policies with a tunnel.

The reqid, which is not on the wire, is flannel's and that of charon's states: either's states carry the packets of
the other's policies.
"""
_LONGEST: Final = 8
"""Characters of a network's name in that of a device, of which Linux takes 15 (IFNAMSIZ)."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """The names of a device that each network of a host has."""

    flannel: str
    """The device's name in the network without a name, as flannel has it."""
    kind: str
    """The part that the device's names in other networks have in common: `wg` of `fl-wg-blue`."""

    def of(self, suffix: str) -> str:
        """Returns the device's name in the network with this suffix: `fl-wg-blue` for `-blue`.

        A name that is too long for that is a checksum there, behind a character that no name of a network has:
        `fl-wg.a7dc2d7c`.
        """
        if not suffix:
            return self.flannel
        if len(suffix) > len("-") + _LONGEST:
            suffix = f".{crc32(suffix.encode()):08x}"
        return f"fl-{self.kind}{suffix}"

    def is_one(self, name: str) -> bool:
        """Whether some network's device is called so."""
        return name == self.flannel or name.startswith((f"fl-{self.kind}-", f"fl-{self.kind}."))


WIREGUARD_DEVICE: Final = DeviceName("flannel-wg", "wg")
WIREGUARD_DEVICE_V6: Final = DeviceName("flannel-wg-v6", "wg6")
UDP_DEVICE: Final = DeviceName("flannel0", "udp")
"""A TUN device, whose packets a process carries."""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """How a backend's packets look from outside: on the node's devices, and between the nodes."""

    devices: dict[int, str]
    """The overlay device by IP version; empty: which device a packet takes depends on the routes, or the kernel."""
    protocol: int
    """The IP protocol that carries packets between the nodes."""
    port: int = 0
    """Destination port of that protocol; 0: it has none."""
    port_v6: int = 0
    """Destination port between IPv6 addresses; 0: the same."""
    carriers: tuple[str, ...] = ()
    """Each device that may carry packets, whatever the routes and the kernel decide."""

    @property
    def text(self) -> str:
        """Names what a firewall must let pass, such as `UDP port 8472`."""
        return f"UDP port {self.port}" if self.protocol == UDP else f"IP protocol {self.protocol}"

    def port_of(self, version: int) -> int:
        """The destination port between addresses of this IP version."""
        return (self.port_v6 if version == 6 else 0) or self.port
