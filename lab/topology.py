r"""The cluster's wires as `ip` commands: pure text, which an engineer can read and a test can compare.

    outside --- underlay (bridge, 10.99.0.0/16) --- h1 --- cni0 (bridge) --- pod1
    10.99.0.1                                   \-- h2 --- cni0 (bridge) --- pod2
    198.51.100.1                                 ...

Every box is a network namespace but the underlay bridge, which stands in the
lab's own. The outside host has no route to the pods: it can answer a packet
only when a host has put its own address on it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Final, TypeAlias

from lab.netns import NetworkNamespace

NETWORK: Final = IPv4Network("10.5.0.0/16")
"""The overlay."""
NETWORK_V6: Final = IPv6Network("fd00:10:5::/48")
UNDERLAY: Final = IPv4Network("10.99.0.0/16")
UNDERLAY_V6: Final = IPv6Network("fd00:99::/64")
OUTSIDE: Final = NetworkNamespace("outside")
OUTSIDE_ADDRESS: Final = UNDERLAY[1]
"""The hosts' default gateway."""
SERVICE_ADDRESS: Final = IPv4Address("198.51.100.1")
"""Stands for the Internet (TEST-NET-2)."""
SERVICE_ADDRESS_V6: Final = IPv6Address("2001:db8::1")
Address: TypeAlias = IPv4Address | IPv6Address
Interface: TypeAlias = IPv4Interface | IPv6Interface
SERVICES: Final[dict[int, Address]] = {4: SERVICE_ADDRESS, 6: SERVICE_ADDRESS_V6}
"""By IP version."""
_LAB: Final = ""


@dataclass(frozen=True, slots=True)
class Host:
    """One host of the cluster, and the pod on it."""

    number: int

    @property
    def name(self) -> str:
        """`h1`: its node name and its namespace."""
        return f"h{self.number}"

    @property
    def namespace(self) -> NetworkNamespace:
        """Where its services run."""
        return NetworkNamespace(self.name)

    @property
    def pod(self) -> NetworkNamespace:
        """The namespace of its pod."""
        return NetworkNamespace(f"pod{self.number}")

    @property
    def address(self) -> IPv4Address:
        """In the underlay: 10.99.0.11 and up."""
        return UNDERLAY[10 + self.number]

    def address_of(self, version: int) -> Address:
        """The same, or its like in IPv6: fd00:99::11 and up."""
        return self.address if version == 4 else UNDERLAY_V6[int(str(10 + self.number), 16)]


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands for one `ip -batch`."""

    namespace: str
    """Empty: the lab's own."""
    commands: tuple[str, ...]

    def __str__(self) -> str:
        prefix = f"ip -n {self.namespace} " if self.namespace else "ip "
        return "".join(f"{prefix}{command}\n" for command in self.commands)


def underlay(hosts: tuple[Host, ...]) -> tuple[Batch, ...]:
    """The bridge, the outside host and the hosts, all namespaces included."""
    names = [OUTSIDE.name, *(host.name for host in hosts)]
    return (
        Batch(_LAB, tuple(f"netns add {name}" for name in [*names, *(host.pod.name for host in hosts)])),
        Batch(
            _LAB,
            (
                "link add underlay type bridge",
                "link set underlay up",
                *(f"link add {name} type veth peer name eth0 netns {name}" for name in names),
                *(f"link set {name} master underlay up" for name in names),
            ),
        ),
        Batch(
            OUTSIDE.name,
            (
                "link set lo up",
                f"address add {SERVICE_ADDRESS}/32 dev lo",
                f"address add {OUTSIDE_ADDRESS}/{UNDERLAY.prefixlen} dev eth0",
                "link set eth0 up",
            ),
        ),
        *map(_addresses, hosts),
    )


def underlay_v6(hosts: tuple[Host, ...]) -> tuple[Batch, ...]:
    """What IPv6 adds to the underlay; without duplicate address detection, which takes a second or two."""
    return (
        Batch(
            OUTSIDE.name,
            (
                f"address add {SERVICE_ADDRESS_V6}/128 dev lo",
                f"address add {UNDERLAY_V6[1]}/{UNDERLAY_V6.prefixlen} dev eth0 nodad",
            ),
        ),
        *map(_addresses_v6, hosts),
    )


def addresses(host: Host, versions: Iterable[int]) -> Iterator[Batch]:
    """Those of one host, whose eth0 is there."""
    yield _addresses(host)
    if 6 in versions:
        yield _addresses_v6(host)
    if 4 not in versions:
        yield without_ipv4(host)


def without_ipv4(host: Host) -> Batch:
    """Takes its address of that kind from a host."""
    return Batch(host.name, (f"address delete {host.address}/{UNDERLAY.prefixlen} dev eth0",))


def _addresses(host: Host) -> Batch:
    return Batch(
        host.name,
        (
            "link set lo up",
            f"address add {host.address}/{UNDERLAY.prefixlen} dev eth0",
            "link set eth0 up",
            f"route add default via {OUTSIDE_ADDRESS}",
        ),
    )


def _addresses_v6(host: Host) -> Batch:
    return Batch(
        host.name,
        (
            f"address add {host.address_of(6)}/{UNDERLAY_V6.prefixlen} dev eth0 nodad",
            f"route add default via {UNDERLAY_V6[1]} dev eth0",
        ),
    )


def pod(host: Host, gateways: Sequence[Interface], mtu: int) -> tuple[Batch, ...]:
    """The bridge for pods on a host, with the gateways' addresses, and the pod: what a CNI plugin does."""
    return (
        Batch(
            host.name,
            (
                f"link add cni0 mtu {mtu} type bridge",
                *(f"address add {gateway} dev cni0{_at_once(gateway)}" for gateway in gateways),
                "link set cni0 up",
                f"link add veth0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {host.pod.name}",
                "link set veth0 master cni0 up",
            ),
        ),
        Batch(
            host.pod.name,
            (
                "link set lo up",
                *(f"address add {_in_pod(gateway)} dev eth0{_at_once(gateway)}" for gateway in gateways),
                "link set eth0 up",
                *(f"route add default via {gateway.ip}" for gateway in gateways),
            ),
        ),
    )


def pod_address(gateway: Interface) -> Address:
    """The address of the pod behind this gateway: the next one."""
    return gateway.ip + 1


def _in_pod(gateway: Interface) -> str:
    return f"{pod_address(gateway)}/{gateway.network.prefixlen}"


def _at_once(gateway: Interface) -> str:
    return " nodad" if gateway.version == 6 else ""
