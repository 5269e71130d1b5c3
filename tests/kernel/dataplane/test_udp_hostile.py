"""udp, both ways: leases that no honest node would publish, and a port that another program has."""

import os
import socket
from collections.abc import Iterator
from typing import Final

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.flannel.udp import UdpHosts, UserPeer, make_kernel_peer, udp_hosts
from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.waiting import contains, eventually

HOSTILE: Final = {
    "10.5.60.0/24": ("10.99.0.11", "public address 10.99.0.11 is our own"),
    "10.5.61.0/24": ("127.0.0.1", "127.0.0.1 is a loopback address"),
    "10.5.62.0/24": ("224.0.0.1", "224.0.0.1 is a multicast address"),
    "10.5.0.0/17": ("10.99.0.63", "overlaps our own 10.5.27.0/24"),
    "10.5.53.128/25": ("10.99.0.64", "overlaps 10.5.53.0/24 of the lease 10.5.53.0-24, which is older"),
    "10.5.68.0/24": ("10.99.0.68", "the backend type is vxlan, that of the network is none"),
}
"""Public address, and a part of the reason."""
OUTSIDE: Final = ("10.0.0.0/8", "10.6.65.0/24", "10.99.0.0/24")
"""Not of this network: no peer at all."""


@pytest.fixture(params=["user", pytest.param("kernel", marks=pytest.mark.modules("fou", "ipip"))])
def hosts(netns: NetworkNamespace, make_netns: NamespaceMaker, request: pytest.FixtureRequest) -> Iterator[UdpHosts]:
    configuration = f'{{"Network":"10.5.0.0/16","Backend":{{"Type":"udp","Mode":"{request.param}"}}}}'
    with udp_hosts(netns, make_netns, configuration) as found:
        n2 = UserPeer(found.n2, found.peer, found.own)
        try:
            yield found
        finally:
            n2.end()


async def test_what_must_not_be_carried_is_refused_and_the_others_are_carried(hosts: UdpHosts) -> None:
    cluster, peer = hosts.cluster, hosts.peer
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        routes = cluster.routes()
        for cidr, (public, reason) in HOSTILE.items():
            hosts.publish(cidr, public, **({"BackendType": "vxlan"} if "vxlan" in reason else {}))
        for cidr in OUTSIDE:
            hosts.publish(cidr, "10.99.0.65")
        hosts.publish("10.5.66.0/24", peer.public)  # of n2, or by another who uses its address: n2 gets the packets
        await running.until(peers=2)
        await running.resync()
        assert await hosts.answers()
        assert await hosts.answers(back=True)
        (added,) = set(cluster.routes()) - set(routes)
        assert added.startswith(f"10.5.66.0/24 via {peer.public} dev ")
        shown = {each.subnets[0]: each for each in await running.peers()}
        assert shown.keys() == {*HOSTILE, peer.cidr, "10.5.66.0/24"}
        for cidr, (_, reason) in HOSTILE.items():
            assert (shown[cidr].state, list(shown[cidr].objects)) == (pb.PEER_STATE_IGNORED, []), cidr
            assert reason in shown[cidr].reason


async def until_not_ready(running: Running, words: str) -> None:
    await eventually(running.reasons, contains(words))


@pytest.mark.modules("fou", "ipip")
@pytest.mark.parametrize(
    "theirs",
    ["port 8285 gue", "port 8285 ipproto 47", "port 8285 ipproto 4", "port 8285 ipproto 47 local 10.99.0.11"],
)
async def test_a_fou_port_of_another_program_is_named_and_stays(
    netns: NetworkNamespace, make_netns: NamespaceMaker, theirs: str
) -> None:
    with udp_hosts(netns, make_netns) as hosts:
        make_kernel_peer(hosts.n2, hosts.peer, hosts.own)
        hosts.cluster.ip(f"fou add {theirs}")
        before = hosts.cluster.ip("fou show")
        async with hosts.cluster.dataplane() as running:
            await until_not_ready(running, "another FOU port is there, `port 8285 ")
            await running.teardown()
            assert hosts.cluster.ip("fou show") == before, "also after a teardown"
            await running.resync()
            (reason,) = (await running.status()).reasons
            cure = reason.partition("delete it with `ip ")[2].partition("`")[0]
            assert cure == f"fou del {theirs}"
            hosts.cluster.ip(cure)
            await running.until(peers=1)
            assert await hosts.answers()


@pytest.mark.modules("fou", "ipip")
async def test_a_port_of_a_process_is_named_and_used_once_it_is_free(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with udp_hosts(netns, make_netns) as hosts:
        make_kernel_peer(hosts.n2, hosts.peer, hosts.own)
        with hosts.n1.inside():
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with thief:
            thief.bind(("0.0.0.0", 8285))  # noqa: S104 - in a namespace of its own
            async with hosts.cluster.dataplane() as running:
                await until_not_ready(running, f"(process {os.getpid()}); cure: kill {os.getpid()}")
                thief.close()
                await running.until(peers=1)
                assert await hosts.answers()
