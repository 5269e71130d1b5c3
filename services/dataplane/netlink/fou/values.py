"""A FOU port as a value; `netlink/objects` says what such values are."""

from collections.abc import Hashable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from flannelette.services.dataplane.netlink.objects import Verb

ENCAP_FOU: Final = 1
"""TUNNEL_ENCAP_FOU (linux/if_tunnel.h): how a tunnel device says that it sends by FOU."""
FOU_PORT: Final = -3
"""Number of the kind, which is its place in the order of work: before rtnetlink's kinds."""


class _FouFields(NamedTuple):
    kind: int
    local: bytes
    port: int
    ifindex: int


class FouPort(_FouFields):
    """A UDP port of a packed local IPv4 address, whose datagrams hold IPv4 packets.

    The kernel marks no port as anybody's. `ifindex` is the tunnel device that sends from this very port: by it the
    port is ours, and with it the port goes.
    """

    __slots__ = ()

    def __new__(cls, local: bytes, port: int, ifindex: int) -> "FouPort":
        """The fields in their order, without the kind."""
        return tuple.__new__(cls, (FOU_PORT, local, port, ifindex))

    @property
    def key(self) -> Hashable:
        """The identity of the port in the kernel: address and port."""
        return FOU_PORT, self.local, self.port


def text(item: FouPort, names: Mapping[int, str]) -> str:
    """`port 8285 ipproto 4 local 10.99.0.11`, as `ip fou show` has it."""
    return f"port {item.port} ipproto 4 local {ip_address(item.local)}"


def command(verb: "Verb", item: FouPort, names: Mapping[int, str]) -> str:
    """Prints the command `ip fou add ...` or `ip fou del ...`."""
    return f"ip fou {'add' if verb == 'replace' else 'del'} {text(item, names)}"
