"""Two hosts of one flannel network, with what a flanneld leaves in their kernels, and pings between them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final

from flannelette.lease.v1 import lease_pb2
from lab.pings import Pinger
from lab.stream import Path, Stream
from tests.hosts.dataplane import Cluster, cluster_of
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE

_NETWORKS: Final = {
    "ipv4": '"Network":"10.5.0.0/16"',
    "ipv6": '"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"',
    "nftables": '"Network":"10.5.0.0/16","EnableNFTables":true',
    "dual": '"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48"',
}
_BACKENDS: Final = {
    "vxlan": '{"Type":"vxlan"}',
    "direct": '{"Type":"vxlan","DirectRouting":true}',
    "host-gw": '{"Type":"host-gw"}',
    "ipip": '{"Type":"ipip"}',
    "wireguard": '{"Type":"wireguard"}',
    "ipip-direct": '{"Type":"ipip","DirectRouting":true}',
}
_DEVICES: Final = {
    "ipip": {4: "flannel.ipip"},
    "ipip-direct": {4: "flannel.ipip"},
    "wireguard": {4: "flannel-wg", 6: "flannel-wg-v6"},
}
"""Where they are not VXLAN's."""
FAMILIES: Final = ("ipv4", "ipv6", "dual")
BACKENDS: Final = ("vxlan", "direct", "host-gw")
"""Those that every kernel carries in a namespace."""


def network(backend: str, families: str) -> str:
    """The network configuration."""
    return f'{{{_NETWORKS[families]},"Backend":{_BACKENDS[backend]}}}'


@dataclass(frozen=True, slots=True)
class Row:
    """What a host has in one address family."""

    version: int
    subnet: str
    length: int
    public: str
    device: str
    mac: str

    def of(self, vni: int, device: str = "") -> "Row":
        """The same where the network has this VNI, or another kind of device."""
        return replace(self, device=device or f"{self.device.rpartition('.')[0]}.{vni}")

    @property
    def cidr(self) -> str:
        return f"{self.subnet}/{self.length}"

    @property
    def gateway(self) -> str:
        """The first address for pods, which stands for them."""
        return f"{self.subnet}1" if self.version == 6 else f"{self.subnet[:-1]}1"


_N1: Final = (
    Row(4, "10.5.27.0", 24, "10.99.0.11", "flannel.1", "76:92:07:f7:74:5d"),
    Row(6, "fd00:10:5:1b::", 64, "fd00:99::11", "flannel-v6.1", "76:92:07:f7:74:5e"),
)
_N2: Final = (
    Row(4, "10.5.53.0", 24, "10.99.0.12", "flannel.1", "06:0c:56:6d:fb:b3"),
    Row(6, "fd00:10:5:35::", 64, "fd00:99::12", "flannel-v6.1", "06:0c:56:6d:fb:b6"),
)


EXAMPLES: Final = {own.version: (own, peer) for own, peer in zip(_N1, _N2, strict=True)}
"""The rows of both hosts in a family."""


def rows_of(backend: str, families: str) -> tuple[list[Row], list[Row]]:
    """What n1 has, and n2."""
    versions, devices = {"ipv6": (6,), "dual": (4, 6)}.get(families, (4,)), _DEVICES.get(backend, {})
    n1, n2 = (
        [row.of(1, devices.get(row.version, "")) for row in rows if row.version in versions] for rows in (_N1, _N2)
    )
    return n1, n2


def subnet_env(rows: Iterable[Row]) -> str:
    """As much of a subnet.env as says what a host had."""
    names = {4: "FLANNEL_SUBNET", 6: "FLANNEL_IPV6_SUBNET"}
    return "".join(f"{names[row.version]}={row.gateway}/{row.length}\n" for row in rows)


class TwoHosts:
    """n1 is the cluster's own namespace; n2 takes part by its kernel alone."""

    def __init__(self, cluster: Cluster, n2: NetworkNamespace, backend: str, families: str) -> None:
        self.cluster = cluster
        self.n2 = n2
        self._backend = backend
        versions = {"ipv6": (6,), "dual": (4, 6)}.get(families, (4,))
        vni = json.loads(cluster.network_file.read_text()).get("Backend", {}).get("VNI", 1)
        devices = _DEVICES.get(backend, {})
        self.rows = [
            (a.of(vni, devices.get(a.version, "")), b.of(vni, devices.get(b.version, "")))
            for a, b in zip(_N1, _N2, strict=True)
            if a.version in versions
        ]

    def leave_flanneld_state(self) -> None:
        """As in golden/*/n1-after-stop, on both."""
        for own, peer in self.rows:
            self._leave(self.cluster.namespace, own, peer)
        self.make_peer()
        (self.cluster.directory / "subnet.env").write_text(subnet_env(own for own, _ in self.rows))

    def move_peer(self, addresses: Mapping[str, str]) -> None:
        """n2 gets other addresses in the underlay, behind a gateway that it is itself."""
        self.rows = [(own, replace(peer, public=addresses[peer.public])) for own, peer in self.rows]
        for _, peer in self.rows:
            gateway, length = ("10.99.0.1/16", 32) if peer.version == 4 else ("fd00:99::1/64", 128)
            nodad = ["nodad"] if peer.version == 6 else []
            self.n2.ip("addr", "add", gateway, "dev", "eth0", *nodad)
            self.n2.ip("addr", "add", f"{peer.public}/{length}", "dev", "eth0", *nodad)

    def make_peer(self) -> None:
        """What n2's kernel has of the overlay."""
        for own, peer in self.rows:
            self._leave(self.n2, peer, own)

    async def join(self) -> None:
        """n2 takes its lease."""
        parts = []
        for _, peer in self.rows:
            part = lease_pb2.Subnet(cidr=peer.cidr, public_address=peer.public)
            if self._backend != "host-gw":
                part.vxlan.vni, part.vxlan.mac = 1, peer.mac
            parts.append(part)
        kind = "host-gw" if self._backend == "host-gw" else "vxlan"
        request = lease_pb2.AcquireLeaseRequest(node="n2", subnets=parts, backend_type=kind)
        async with self.cluster.calls() as stub:
            await stub.AcquireLease(request, timeout=PATIENCE)

    def objects(self) -> list[str]:
        """Routes, neighbours and forwarding entries of n1, as the tools print them."""
        lines = self.cluster.ip("route show table main").splitlines()
        lines += self.cluster.ip("-6 route show table main").splitlines()
        lines += self.cluster.ip("neigh show nud permanent").splitlines()
        for device in self._devices if self._backend != "wireguard" else ():
            lines += self.cluster.fdb(device)
        return sorted(" ".join(line.split()) for line in lines)

    def devices(self) -> list[str]:
        """The overlay's devices of n1 with their addresses, likewise."""
        shown = [
            self.cluster.ip(f"-{how} {device}")
            for device in self._devices
            for how in ("d -o link show", "o addr show")
        ]
        return [" ".join(text.split()) for text in shown]

    @property
    def _devices(self) -> list[str]:
        return [own.device for own, _ in self.rows] if self._backend != "host-gw" else []

    @contextmanager
    def stream(self, sizes: Mapping[int, int] = MappingProxyType({})) -> Iterator[Stream]:
        """100 pings a second from n1 to n2 in each family; `sizes` of packets that are not divided, by IP version."""
        with ExitStack() as stack:
            paths = []
            for own, peer in self.rows:
                size = sizes.get(own.version, 0)
                pinger = stack.enter_context(Pinger(self.cluster.namespace, own.version, size=size))
                paths.append(Path("n1", "n2", pinger, ip_address(peer.gateway)))
            yield Stream(paths)

    def _leave(self, host: NetworkNamespace, own: Row, peer: Row) -> None:
        def ip(line: str) -> None:
            host.ip(f"-{own.version}", *line.split())

        if self._backend != "host-gw":
            tunnel = f"type vxlan id 1 local {own.public} dev eth0 dstport 8472 nolearning"
            mtu = 1450 if own.version == 4 else 1430
            ip(f"link add {own.device} address {own.mac} mtu {mtu} {tunnel}")
            host.run("sysctl", "-qw", f"net/ipv6/conf/{own.device}/accept_ra=0")
            ip(f"addr add {own.subnet}/{32 if own.version == 4 else 128} dev {own.device}")
            ip(f"link set {own.device} up")
        if self._backend == "vxlan":
            ip(f"neigh replace {peer.subnet} lladdr {peer.mac} dev {own.device} nud permanent")
            host.run(*f"bridge fdb replace {peer.mac} dev {own.device} dst {peer.public} self permanent".split())
            ip(f"route replace {peer.cidr} via {peer.subnet} dev {own.device} proto boot onlink")
        else:
            ip(f"route replace {peer.cidr} via {peer.public} proto boot")


@contextmanager
def two_hosts(
    netns: NetworkNamespace,
    make_netns: NamespaceMaker,
    backend: str,
    families: str,
    kind: type[Cluster] = Cluster,
    configuration: str = "",
) -> Iterator[TwoHosts]:
    """Both on one underlay, a bridge for pods on each; nothing of the overlay yet.

    The network is the one of these names, or has another `configuration`.
    """
    n2 = make_netns()
    with cluster_of(kind, netns, configuration or network(backend, families)) as cluster:
        hosts = TwoHosts(cluster, n2, backend, families)
        netns.ip("link", "set", "far", "netns", n2.name)
        for words in ("link set far name eth0", "link set eth0 up", "addr add 10.99.0.12/16 dev eth0"):
            n2.ip(*words.split())
        for host, public in ((netns, "fd00:99::11"), (n2, "fd00:99::12")):
            host.ip(*f"addr add {public}/64 dev eth0 nodad".split())
            host.ip(*"link add cni0 type bridge".split())
            host.ip(*"link set cni0 up".split())
        netns.ip(*"-6 route add default via fd00:99::1 dev eth0".split())
        for own, peer in hosts.rows:
            for host, row in ((netns, own), (n2, peer)):
                nodad = ["nodad"] if row.version == 6 else []
                host.ip("addr", "add", f"{row.gateway}/{row.length}", "dev", "cni0", *nodad)
        yield hosts
