"""A firewall that drops the packets between the nodes is found, and the command that is told lets them in again.

Regression tests of hole 11.
"""

import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.network import parse_network
from flannelette.services.masq.diagnose.flows import Peer, Surroundings, flows_of, tunnel_of
from flannelette.services.masq.diagnose.host_checks import findings
from flannelette.services.masq.firewalls.auto import HostProbe
from flannelette.services.masq.firewalls.firewall import FirewallKind as Kind
from tests.hosts.masq import DUAL, SETTINGS, SUBNETS, Host
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace

PORT = "-p udp --dport 8472"
DROPS = {
    "INPUT": f"-A INPUT {PORT} -j DROP",
    "INPUT, rejected": f"-A INPUT {PORT} -j REJECT",
    "INPUT, all of UDP": "-A INPUT -p udp -j DROP",
    "raw": f"-t raw -A PREROUTING {PORT} -j DROP",
    "mangle": f"-t mangle -A PREROUTING {PORT} -j DROP",
    "mangle INPUT": f"-t mangle -A INPUT {PORT} -j DROP",
    "a policy": "-P INPUT DROP",
    "a policy, and what is established is accepted": (
        "-P INPUT DROP; -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; -A INPUT -i lo -j DROP"
    ),
    "a chain of its own": f"-N GUARD; -A GUARD {PORT} -j DROP; -A INPUT -j GUARD",
}
HEALTHY = {
    "nothing": "-S",
    "accepted from the underlay": f"-P INPUT DROP; -A INPUT -s {{underlay}} {PORT} -j ACCEPT",
    "accepted by an interface": "-P INPUT DROP; -A INPUT -i eth0 -j ACCEPT",
    "dropped by another interface": f"-A INPUT -i eth7 {PORT} -j DROP",
    "another port": "-A INPUT -p udp --dport 4789 -j DROP",
    "kube-proxy": (
        "-N KUBE-FIREWALL; -A INPUT -j KUBE-FIREWALL; -A OUTPUT -j KUBE-FIREWALL; "
        "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP; -N KUBE-FORWARD; -A FORWARD -j KUBE-FORWARD; "
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP"
    ),
    "docker": (
        "-N DOCKER; -N DOCKER-USER; -A FORWARD -j DOCKER-USER; -A FORWARD -o docker0 -j DOCKER; "
        "-A FORWARD -i docker0 -o docker0 -j ACCEPT; -A DOCKER ! -i docker0 -o docker0 -j DROP"
    ),
}
OF_PODS = ("INPUT, all of UDP", "a policy")
"""Those that drop what pods answer to the host, too."""
NFT = {
    "a chain of nftables": "add rule inet own c udp dport 8472 drop",
    "a policy of nftables": "chain inet own c { policy drop; }",
}
PEERS = Surroundings(
    tuple(
        Peer(ip_address(there), "eth0", ip_address(here))
        for here, there in (("10.99.0.11", "10.99.0.12"), ("fd00:99::11", "fd00:99::12"))
    )
)
ADDRESSES = {4: ("10.99.0.11", "10.99.0.12", 16), 6: ("fd00:99::11", "fd00:99::12", 64)}


@pytest.fixture
def probe(host: Host) -> Iterator[HostProbe]:
    it = HostProbe()
    yield it
    it.close()


@pytest.fixture
def peer(host: Host, make_netns: NamespaceMaker) -> NetworkNamespace:
    other = make_netns()
    host.netns.ip("link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", other.name)
    for version, (here, there, length) in ADDRESSES.items():
        for namespace, address in ((host.netns, here), (other, there)):
            namespace.ip("addr", "add", f"{address}/{length}", "dev", "eth0", *(["nodad"] if version == 6 else []))
    for namespace in (host.netns, other):
        namespace.ip("link", "set", "eth0", "up")
    return other


def arrives(host: Host, peer: NetworkNamespace, version: int, *, tries: int = 300) -> bool:
    """Whether a packet to the port of VXLAN does, of one every fifth of a second."""
    here = ADDRESSES[version][0]
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    with host.netns.inside():
        listening = socket.socket(family, socket.SOCK_DGRAM)
        listening.bind((here, 8472))
    with peer.inside():
        sending = socket.socket(family, socket.SOCK_DGRAM)
    with listening, sending:
        listening.settimeout(0.2)
        for _ in range(tries):  # the first may wait for the neighbour's address
            try:
                sending.sendto(b"x", (here, 8472))
                return listening.recv(1) == b"x"
            except (TimeoutError, ConnectionRefusedError, PermissionError):
                continue
    return False


def found(probe: HostProbe, config: str = "") -> list[Condition]:
    network = parse_network(config) if config else DUAL
    around, flows = probe.checks(), flows_of(network, SUBNETS)
    everything = findings(around, Kind.NFTABLES, flows, SETTINGS, tunnel_of(network, "", PEERS))
    return [each for each in everything if each.check == "firewall-tunnel"]


def typed(host: Host, program: str, lines: str, version: int) -> None:
    for line in lines.format(underlay="10.99.0.0/16" if version == 4 else "fd00:99::/64").split("; "):
        host.run(program, *line.split())


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("firewall", ["legacy", "nft"])
@pytest.mark.parametrize("name", DROPS)
def test_a_firewall_that_drops_the_tunnel_is_named_and_its_cure_helps(
    host: Host, probe: HostProbe, peer: NetworkNamespace, name: str, firewall: str, version: int
) -> None:
    program = f"ip{'6' if version == 6 else ''}tables-{firewall}"
    assert arrives(host, peer, version)
    assert found(probe) == []
    typed(host, program, DROPS[name], version)
    assert not arrives(host, peer, version, tries=3)
    (finding,) = found(probe)
    too = ", and between this host and pods," if name in OF_PODS else ""
    assert finding.problem == f"Packets between the nodes (UDP port 8472){too} are dropped."
    assert f"({program})" in finding.cause
    assert finding.evidence
    assert finding.is_broken
    host.run("sh", "-c", finding.cure)
    assert found(probe) == []
    if version == 4 or "policy" not in name:  # a policy drops the discovery of neighbours too
        assert arrives(host, peer, version)


@pytest.mark.parametrize("name", NFT)
def test_a_chain_of_nftables_that_drops_the_tunnel_is_named_too(
    host: Host, probe: HostProbe, peer: NetworkNamespace, name: str
) -> None:
    host.run("nft", "add table inet own; add chain inet own c { type filter hook input priority 5; }")
    assert found(probe) == []
    host.run("nft", NFT[name])
    assert not arrives(host, peer, 4, tries=3)
    (finding,) = found(probe)
    assert "chain c of table inet own (nft)" in finding.cause
    host.run("sh", "-c", finding.cure)
    assert found(probe) == []
    assert arrives(host, peer, 4)


@pytest.mark.parametrize("firewall", ["legacy", "nft"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_firewall_that_lets_the_tunnel_in_is_no_finding(
    host: Host, probe: HostProbe, peer: NetworkNamespace, name: str, firewall: str
) -> None:
    typed(host, f"iptables-{firewall}", HEALTHY[name], 4)
    assert arrives(host, peer, 4)
    assert found(probe) == []


def test_a_network_without_a_tunnel_has_none_to_drop(host: Host, probe: HostProbe) -> None:
    host.run("iptables-legacy", *DROPS["INPUT"].split())
    assert len(found(probe)) == 1
    assert found(probe, '{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}') == []
    assert found(probe, '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","Port":4789}}') == []
