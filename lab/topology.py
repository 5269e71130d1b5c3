r"""The cluster's wires as `ip` commands: pure text, which an engineer can read and a test can compare.

    outside --- underlay (bridge, 10.99.0.0/16) --- h1 --- cni0 (bridge) --- pod1
    10.99.0.1                                   \-- h2 --- cni0 (bridge) --- pod2
    198.51.100.1                                 ...

Every box is a network namespace but the underlay bridge, which stands in the
lab's own. The outside host has no route to the pods: it can answer a packet
only when a host has put its own address on it. A second cluster has its own
underlay (bridge, 10.98.0.0/16), and the outside host is the router between.
With several networks a host has a bridge and a pod for each: cni1, pod1-red.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Final, TypeAlias

from lab.netns import NetworkNamespace

NETWORK: Final = IPv4Network("10.5.0.0/16")
"""The IPv4 network of the overlay."""
NETWORK_V6: Final = IPv6Network("fd00:10:5::/48")
NETWORKS: Final = ("blue", "red", "green", "grey")
"""Names of networks, where each host has several."""
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
"""Service addresses by IP version."""
_LAB: Final = ""


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a cluster, and the pod on it."""

    number: int
    cluster: int = field(default=1, kw_only=True)

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
        return self.pod_in("")

    def pod_in(self, network: str) -> NetworkNamespace:
        """Returns the namespace of its pod in a network; empty: the only one."""
        return NetworkNamespace(f"pod{self.number}{network and f'-{network}'}")

    @property
    def address(self) -> IPv4Address:
        """The address of the host in the underlay: 10.99.0.11 and up."""
        return underlay_of(self.cluster)[10 + self.number]

    def address_of(self, version: int) -> Address:
        """The same, or its like in IPv6: fd00:99::11 and up."""
        if version == 4:
            return self.address
        return underlay_v6_of(self.cluster)[int(str(10 + self.number), 16)]


def underlay_of(cluster: int) -> IPv4Network:
    """10.99.0.0/16, of the second cluster 10.98.0.0/16, and so on."""
    return IPv4Network((int(UNDERLAY[0]) - (cluster - 1 << 16), UNDERLAY.prefixlen))


def underlay_v6_of(cluster: int) -> IPv6Network:
    """Returns the IPv6 underlay of a cluster: fd00:99::/64, then fd00:98::/64."""
    return IPv6Network((int(UNDERLAY_V6[0]) - (cluster - 1 << 96), UNDERLAY_V6.prefixlen))


def network_of(cluster: int) -> IPv4Network:
    """The overlay of a cluster, or of a network by its number: 10.5.0.0/16, then 10.6.0.0/16."""
    return IPv4Network((int(NETWORK[0]) + (cluster - 1 << 16), NETWORK.prefixlen))


def network_v6_of(cluster: int) -> IPv6Network:
    """Returns the IPv6 network of a cluster: fd00:10:5::/48, then fd00:10:6::/48."""
    return IPv6Network((int(NETWORK_V6[0]) + (cluster - 1 << 80), NETWORK_V6.prefixlen))


@dataclass(frozen=True, slots=True)
class Batch:
    """Commands for one `ip -batch`."""

    namespace: str
    """Empty: the lab's own."""
    commands: tuple[str, ...]

    def __str__(self) -> str:
        prefix = f"ip -n {self.namespace} " if self.namespace else "ip "
        return "".join(f"{prefix}{command}\n" for command in self.commands)


def underlay(hosts: tuple[Host, ...], networks: Sequence[str] = ("",)) -> tuple[Batch, ...]:
    """The bridge, the outside host and the hosts, all namespaces included."""
    names = [OUTSIDE.name, *(host.name for host in hosts)]
    pods = [host.pod_in(network).name for host in hosts for network in networks]
    return (
        Batch(_LAB, tuple(f"netns add {name}" for name in [*names, *pods])),
        *(_wires(cluster, [h.name for h in hosts if h.cluster == cluster]) for cluster in clusters_of(hosts)),
        Batch(
            OUTSIDE.name,
            (
                "link set lo up",
                f"address add {SERVICE_ADDRESS}/32 dev lo",
                *(
                    command
                    for cluster in clusters_of(hosts)
                    for command in (
                        f"address add {underlay_of(cluster)[1]}/{UNDERLAY.prefixlen} dev eth{cluster - 1}",
                        f"link set eth{cluster - 1} up",
                    )
                ),
            ),
        ),
        *map(_addresses, hosts),
    )


def narrow_path(hosts: Iterable[Host], mtu: int) -> str:
    """The rules of nft by which the underlay drops larger packets between hosts with even and with odd numbers."""
    even, odd = (", ".join(host.name for host in hosts if host.number % 2 == rest) for rest in (0, 1))
    rules = (f"iifname {{ {a} }} oifname {{ {b} }} meta length > {mtu} drop" for a, b in ((even, odd), (odd, even)))
    return f"table bridge middle {{ chain path {{ type filter hook forward priority 0; {'; '.join(rules)}; }}; }}"


def clusters_of(hosts: Iterable[Host]) -> list[int]:
    """Returns the clusters of the hosts, in order."""
    return sorted({host.cluster for host in hosts})


def _wires(cluster: int, hosts: Sequence[str]) -> Batch:
    """The bridge of a cluster, with its hosts and the outside host."""
    end = "" if cluster == 1 else str(cluster)
    bridge, router = f"underlay{end}", f"{OUTSIDE.name}{end}"
    return Batch(
        _LAB,
        (
            f"link add {bridge} type bridge",
            f"link set {bridge} up",
            f"link add {router} type veth peer name eth{cluster - 1} netns {OUTSIDE.name}",
            *(f"link add {name} type veth peer name eth0 netns {name}" for name in hosts),
            *(f"link set {name} master {bridge} up" for name in (router, *hosts)),
        ),
    )


def underlay_v6(hosts: tuple[Host, ...]) -> tuple[Batch, ...]:
    """What IPv6 adds to the underlay; without duplicate address detection, which takes a second or two."""
    return (
        Batch(
            OUTSIDE.name,
            (
                f"address add {SERVICE_ADDRESS_V6}/128 dev lo",
                *(
                    f"address add {underlay_v6_of(cluster)[1]}/{UNDERLAY_V6.prefixlen} dev eth{cluster - 1} nodad"
                    for cluster in clusters_of(hosts)
                ),
            ),
        ),
        *map(_addresses_v6, hosts),
    )


def addresses(host: Host, versions: Iterable[int]) -> Iterator[Batch]:
    """Yields the addresses of one host, whose eth0 is there."""
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
            f"route add default via {underlay_of(host.cluster)[1]}",
        ),
    )


def _addresses_v6(host: Host) -> Batch:
    return Batch(
        host.name,
        (
            f"address add {host.address_of(6)}/{UNDERLAY_V6.prefixlen} dev eth0 nodad",
            f"route add default via {underlay_v6_of(host.cluster)[1]} dev eth0",
        ),
    )


def pod(host: Host, gateways: Sequence[Interface], mtu: int, network: str = "") -> tuple[Batch, ...]:
    """The bridge for pods on a host, with the gateways' addresses, and the pod: what a CNI plugin does."""
    number, space = NETWORKS.index(network) if network else 0, host.pod_in(network).name
    return (
        Batch(
            host.name,
            (
                f"link add cni{number} mtu {mtu} type bridge",
                *(f"address add {gateway} dev cni{number}{_at_once(gateway)}" for gateway in gateways),
                f"link set cni{number} up",
                f"link add veth{number} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {space}",
                f"link set veth{number} master cni{number} up",
            ),
        ),
        Batch(
            space,
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
