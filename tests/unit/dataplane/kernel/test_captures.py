"""The routes of hosts that a real flanneld ran on: whose each of them is, and what it takes to make them ours."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_network

import pytest

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.dataplane.backends.backend import Backend, NodeLinks
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.kernel.reconciler import OwnedState, OwnershipRules, classify, rules_of
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.netlink.objects import KernelObject, Route, plan, steps
from flannelette.services.dataplane.peers import Peer, PeerContext
from flannelette.services.dataplane.underlay import connected_routes
from tests import paths
from tests.examples.dataplane import ETH0, HOST_GW_LINKS, LINKS, NAMES, route, subnet
from tests.examples.leases import SMALL_JSON, network

GOLDEN = paths.GOLDEN / "dataplane"
PROTOCOLS = {"kernel": 2, "boot": 3}


@dataclass(frozen=True)
class Host:
    """n1 of a capture, with the leases of its peers as its etcd.txt has them."""

    name: str
    backend: Backend
    links: NodeLinks
    own: str
    peers: tuple[Subnet, ...]

    def lines(self) -> list[str]:
        """As `ip -details route` printed them."""
        text = (GOLDEN / "flanneld" / f"{self.name}.txt").read_text()
        return [line.removeprefix("unicast ") for line in text.splitlines()]

    def domain(self, subnets: Iterable[Subnet]) -> OwnershipRules:
        peers = [Peer(Lease("", "", (s,)), tuple(self.wanted([s])), (), (s,)) for s in subnets]
        return rules_of(PeerContext(network(SMALL_JSON), self.backend, self.links, (ip_network(self.own),)), peers)

    def wanted(self, peers: Iterable[Subnet]) -> frozenset[KernelObject]:
        return frozenset(item for peer in peers for item in self.backend.peer_objects([peer], (), self.links))


VXLAN = Host(
    "vxlan",
    Vxlan(),
    LINKS,
    "10.5.27.0/24",
    (
        subnet("10.5.53.0/24", "10.99.0.12", "06:0c:56:6d:fb:b3"),
        subnet("10.5.82.0/24", "10.98.0.14", "32:97:99:5c:b1:6f"),
        subnet("10.5.97.0/24", "10.99.0.13", "0e:9d:40:24:9e:77"),
    ),
)
DIRECT = Host(
    "vxlan-directrouting",
    Vxlan(),
    LINKS,
    "10.5.88.0/24",
    (
        subnet("10.5.28.0/24", "10.98.0.14", "e2:8b:37:f5:a4:26"),
        subnet("10.5.34.0/24", "10.99.0.13", "d2:f8:89:d5:8c:ea"),
        subnet("10.5.67.0/24", "10.99.0.12", "56:89:e0:05:74:82"),
    ),
)
HOST_GW = Host(
    "host-gw",
    HostGw(),
    HOST_GW_LINKS,
    "10.5.38.0/24",
    (
        subnet("10.5.41.0/24", "10.99.0.13"),
        subnet("10.5.78.0/24", "10.99.0.12"),
        subnet("10.5.99.0/24", "10.98.0.14"),
    ),
)


def parsed(line: str) -> Route:
    words = line.replace("default", "0.0.0.0/0", 1).split()
    return route(" ".join(words), PROTOCOLS[words[words.index("proto") + 1]])


def whose(made: Route, found: OwnedState) -> str:
    return "ours" if made in found.ours else "foreign" if made in found.foreign else "no concern"


def report(host: Host, peers: Iterable[Subnet]) -> str:
    """Whose each route is; then the commands that take over, neighbours and forwarding entries being there."""
    peers = tuple(peers)
    wanted = host.wanted(peers)
    on_devices = {item for item in wanted if not isinstance(item, Route)}
    found = classify(map(parsed, host.lines()), on_devices, wanted, host.domain(peers))
    taken = {item.key for item in found.foreign}
    todo = plan(found.ours, frozenset(item for item in wanted if item.key not in taken))
    rows = [f"{whose(parsed(line), found):10}  {line}" for line in host.lines()]
    for verb, items in steps(todo):
        rows += sorted(command(verb, item, NAMES) for item in items)
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("host", [VXLAN, DIRECT, HOST_GW], ids=lambda host: host.name)
def test_a_host_of_flannelds_is_taken_over_by_these_commands(host: Host) -> None:
    assert report(host, host.peers) == (GOLDEN / f"takeover-{host.name}.txt").read_text()


def test_vxlan_keeps_its_hands_off_a_direct_route_whose_lease_is_gone() -> None:
    n4, n3, *others = DIRECT.peers
    text = report(DIRECT, [n4, *others])
    assert f"foreign     {n3.cidr} via {n3.public_address} dev eth0 proto boot scope global\n" in text


def test_host_gw_keeps_its_hands_off_a_route_whose_lease_is_gone() -> None:
    n3, *others = HOST_GW.peers
    assert f"foreign     {n3.cidr} via 10.99.0.13 dev eth0 proto boot scope global\n" in report(HOST_GW, others)


def test_vxlan_removes_the_route_of_a_peer_that_left_while_flanneld_was_down() -> None:
    n2, *others = VXLAN.peers
    commands = report(VXLAN, others)
    assert f"ip route del {n2.cidr} via 10.5.53.0 dev flannel.1 proto boot onlink\n" in commands
    assert f"ip route replace {n2.cidr}" not in commands


def test_a_takeover_never_touches_the_hosts_own_routes_nor_those_of_its_pods() -> None:
    for host in (VXLAN, DIRECT, HOST_GW):
        rows = [line for line in report(host, host.peers).splitlines() if line.startswith("ip ")]
        assert rows
        assert not [row for row in rows if any(word in row for word in ("default", "cni0", host.own, "10.99.0.0/16"))]


def test_with_direct_routing_flannelds_direct_routes_become_ours_and_need_no_device() -> None:
    near = connected_routes([route("10.99.0.0/16 dev eth0")], ETH0)
    host = replace(DIRECT, backend=Vxlan(direct_routing=True), links=replace(LINKS, on_link=near))
    _, n3, n2 = host.peers
    commands = [line for line in report(host, host.peers).splitlines() if line.startswith("ip ")]
    assert commands == [
        "ip route replace 10.5.28.0/24 via 10.5.28.0 dev flannel.1 proto 77 metric 1309 onlink",
        f"ip route replace {n3.cidr} via {n3.public_address} dev eth0 proto 77 metric 1315",
        f"ip route replace {n2.cidr} via {n2.public_address} dev eth0 proto 77 metric 1348",
        "ip route del 10.5.28.0/24 via 10.5.28.0 dev flannel.1 proto boot onlink",
        f"ip route del {n3.cidr} via {n3.public_address} dev eth0 proto boot",
        f"ip route del {n2.cidr} via {n2.public_address} dev eth0 proto boot",
    ]
