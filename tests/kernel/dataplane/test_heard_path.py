"""What a router tells of a path (ICMP: fragmentation needed, packet too big) has the prober search it anew."""

import asyncio
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flannelette.services.core.family import FAMILIES, Family
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import parse_network
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.peers import Peer, PeerContext
from flannelette.services.dataplane.probes import prober as module
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.probes.record import Answering
from flannelette.services.dataplane.probes.sockets import NEVER_FRAGMENT
from tests.examples.dataplane import LINKS, subnet
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.waiting import eventually

NETWORK = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
PEERS = {4: ("10.5.3.0/24", "10.98.0.2"), 6: ("fd00:10:5:3::/64", "fd00:98::2")}


@pytest.fixture
def router(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator[NetworkNamespace]:
    """One between this host and a peer whose overlay is its loopback; the test is inside this host."""
    router, peer = make_netns("router"), make_netns("peer")
    netns.ip(*f"link add eth0 type veth peer name left netns {router.name}".split())
    router.ip(*f"link add right type veth peer name eth0 netns {peer.name}".split())
    router.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    for host, lines in (
        (netns, ("address add 10.99.0.11/24 dev eth0", "address add fd00:99::11/64 dev eth0 nodad")),
        (router, ("address add 10.99.0.1/24 dev left", "address add fd00:99::1/64 dev left nodad")),
        (router, ("address add 10.98.0.1/24 dev right", "address add fd00:98::1/64 dev right nodad")),
        (peer, ("address add 10.98.0.2/24 dev eth0", "address add fd00:98::2/64 dev eth0 nodad")),
        (peer, ("address add 10.5.3.0/32 dev lo", "address add fd00:10:5:3::1/128 dev lo nodad")),
        (netns, ("link set eth0 up", "route add default via 10.99.0.1", "route add default via fd00:99::1")),
        (peer, ("link set eth0 up", "route add default via 10.98.0.1", "route add default via fd00:98::1")),
        (router, ("link set left up", "link set right up", "route add 10.5.3.0/24 via 10.98.0.2")),
        (router, ("route add fd00:10:5:3::/64 via fd00:98::2",)),
    ):
        for line in lines:
            host.ip(*line.split())
    with netns.inside():
        yield router


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_a_router_that_tells_of_a_smaller_path_is_believed_after_a_search(
    family: Family, router: NetworkNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REST_SECONDS", 0.5)
    cidr, address = PEERS[family.version]
    lease = Lease("peer", "n2", (subnet(cidr, address),), "vxlan")
    peers, found = {"peer": Peer(lease, (), (), lease.subnets)}, dict[str, int]()
    context = PeerContext(parse_network(NETWORK), Vxlan(), LINKS)
    programmer = SimpleNamespace(context=context, peers=peers, reconciler=SimpleNamespace(mtus={}))
    dataplane: Any = SimpleNamespace(programmer=programmer, detours={}, iterations=0, is_paused=False)
    dataplane.note_path = lambda lease, of, largest, is_final: found.update({str(of): largest} if is_final else {})
    prober = Prober(dataplane, 40)
    running = asyncio.create_task(prober.run())
    try:
        await eventually(lambda: prober.records.get("peer", {}), lambda records: bool(records) and all(
            record.state is Answering.ANSWERS and record.sizes.largest == record.mtu for record in records.values()
        ))  # fmt: skip
        monkeypatch.setattr(module, "REST_SECONDS", 3600.0)  # no peer has another turn by itself
        await asyncio.sleep(2)  # but the one that it has waited for
        router.ip("link", "set", "right", "mtu", "1400")
        with socket.socket(family.af, socket.SOCK_DGRAM) as sender:  # as a tunnel's packet
            level, option, _ = NEVER_FRAGMENT[family.version]
            sender.setsockopt(level, option, 2)  # IP_PMTUDISC_DO
            sender.sendto(bytes(1440), (address, 8472))
        await eventually(lambda: found, lambda limits: limits.get(str(family)) == 1400)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
