"""Rules that drop ARP on a node without a tunnel: between its pods, and with a peer and a router of its underlay."""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import arp_of
from flannelette.services.masq.diagnose.look import surroundings
from flannelette.services.masq.diagnose.nft_tables import read_nft
from flannelette.services.masq.diagnose.obstacles import dropping
from tests.hosts.masq import Host, entered
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.watched_node import pings

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}')
SUBNETS = (ip_network("10.5.27.0/24"),)


@dataclass(frozen=True)
class Node:
    """A node, inside of which the test is, with two pods, a peer, and a router to the outside."""

    host: Host
    pods: tuple[NetworkNamespace, NetworkNamespace]
    peer: NetworkNamespace

    def lost(self) -> set[str]:
        """What does not pass once nobody knows a neighbour."""
        for each in (self.host.netns, self.peer, *self.pods):
            each.ip("neigh", "flush", "all")
        ways = {
            "between pods": (self.pods[0], "10.5.27.3"),
            "to a peer": (self.pods[0], "10.5.53.1"),
            "to the outside": (self.pods[1], "198.51.100.9"),
        }
        return {name for name, (pod, to) in ways.items() if not pings(pod, to)}

    def found(self) -> list[Condition]:
        """What masq says."""
        return dropping(read_nft(), "", arp_of(NETWORK, SUBNETS, surroundings(NETWORK, SUBNETS, "")))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    make = NamespaceMaker()
    here, peer, pods = make(), make(), (make(), make())
    make.connect(here, "10.99.0.11/16", peer, "10.99.0.12/16")
    for line in (
        "link add cni0 type bridge",
        "link set cni0 up",
        "addr add 10.5.27.1/24 dev cni0",
        "route add 10.5.53.0/24 via 10.99.0.12",
        "route add default via 10.99.0.1",
    ):
        here.ip(*line.split())
    here.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    for number, pod in enumerate(pods, 2):
        here.ip(*f"link add veth{number} type veth peer name eth0 netns {pod.name}".split())
        here.ip(*f"link set veth{number} master cni0 up".split())
        for line in (f"addr add 10.5.27.{number}/24 dev eth0", "link set eth0 up", "route add default via 10.5.27.1"):
            pod.ip(*line.split())
    for line in ("addr add 10.99.0.1/16 dev eth0", "route add 10.5.27.0/24 via 10.99.0.11"):
        peer.ip(*line.split())
    for address in ("10.5.53.1/32", "198.51.100.9/32"):
        peer.ip("addr", "add", address, "dev", "lo")
    with entered(here, tmp_path_factory.mktemp("arp")) as host:
        yield Node(host, pods, peer)
    make.close()


_FORWARD = "type filter hook forward priority 0;"
ROWS = {
    "between pods": (
        f"table bridge f {{ chain c {{ {_FORWARD} policy drop; meta protocol {{ ip, ip6 }} accept; }}; }}",
        "Packets of ARP between pods of this node are",
        {"between pods"},
    ),
    "answers of one pod": (
        f'table bridge f {{ chain c {{ {_FORWARD} iifname "veth3" arp operation reply drop; }}; }}',
        "ARP replies between pods of this node are",
        {"between pods"},
    ),
    "all but a router": (
        "table arp f { chain c { type filter hook output priority 0; policy drop; arp daddr ip 10.99.0.1 accept; "
        'oifname "cni0" accept; }; }',
        "Packets of ARP between this host and 10.99.0.12 are",
        {"to a peer"},
    ),
    "a router": (
        "table arp f { chain c { type filter hook input priority 0; arp saddr ip . arp operation "
        "{ 10.99.0.1 . reply, 10.99.0.99 . request } drop; }; }",
        "ARP replies between this host and 10.99.0.1 are",
        {"to the outside"},
    ),
    "what the host asks, of all": (
        'table netdev f { chain c { type filter hook egress device "eth0" priority 0; meta pkttype broadcast drop; '
        "arp operation 1 drop; }; }",
        "ARP requests between this host and 10.99.0.1, 10.99.0.12 are",
        {"to a peer", "to the outside"},
    ),
}
"""What is typed, what masq says, and what is lost."""


@pytest.mark.parametrize("row", ROWS)
def test_packets_of_arp_that_are_dropped_are_named_and_pass_after_the_cure(row: str, node: Node) -> None:
    act, said, lost = ROWS[row]
    assert not node.lost()
    assert not node.found()
    try:
        node.host.run("nft", act)
        assert node.lost() == lost
        found = node.found()
        assert [each.check for each in found] == ["firewall-arp"], found
        assert (found[0].is_broken, found[0].problem.startswith(said)) == (True, True), found
        node.host.run("sh", "-ec", found[0].cure)
        assert not node.lost()
        assert not node.found()
    finally:
        node.host.run("nft", "flush", "ruleset")


def test_an_address_whose_mac_a_program_has_set_needs_no_arp(node: Node) -> None:
    for address in ("10.99.0.1", "10.99.0.12"):
        node.host.run("sh", "-ec", f"ip neigh replace {address} lladdr {_mac(node.peer)} dev eth0 nud permanent")
    try:
        node.peer.ip(*f"neigh replace 10.99.0.11 lladdr {_mac(node.host.netns)} dev eth0 nud permanent".split())
        node.host.run("nft", 'table arp f { chain c { type filter hook input priority 0; iifname "eth0" drop; }; }')
        assert not node.lost()
        assert not node.found()
    finally:
        node.host.run("nft", "flush", "ruleset")
        node.host.run("ip", "neigh", "flush", "nud", "permanent", "dev", "eth0")
        node.peer.ip("neigh", "flush", "nud", "permanent", "dev", "eth0")


def _mac(where: NetworkNamespace) -> str:
    return where.ip("-br", "link", "show", "eth0").split()[2]
