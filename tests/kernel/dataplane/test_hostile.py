"""Leases that no honest node would publish: refused, shown, and without effect on the others or on the underlay."""

from collections.abc import Iterator

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Cluster, cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.waiting import contains, eventually

WIDE = '{"Network":"10.0.0.0/8","SubnetLen":24,"SubnetMin":"10.5.0.0","Backend":{"Type":"vxlan"}}'
MAC = "06:0c:56:6d:fb:b3"
HOSTILE = {
    "10.99.0.0/24": ("n2", "10.99.0.12", "02:00:00:00:00:02", "covers addresses of the underlay 10.99.0.0/16"),
    "10.5.60.0/24": ("n3", "10.99.0.13", "03:00:00:00:00:03", "03:00:00:00:00:03 is a multicast address"),
    "10.5.61.0/24": ("n4", "10.99.0.14", "01:00:5e:00:00:01", "01:00:5e:00:00:01 is a multicast address"),
    "10.200.1.0/24": ("n6", "10.99.0.16", "02:00:00:00:00:06", "covers 10.200.1.5/32, which --never-route protects"),
    "10.250.1.0/24": ("n7", "10.99.0.17", "02:00:00:00:00:07", "lies outside what --allowed-network allows: "),
    "10.5.63.0/24": ("n8", "10.99.0.18", "00:00:00:00:00:00", "00:00:00:00:00:00 is zero"),
}
LIMITS = ("--allowed-network=10.0.0.0/9", "--allowed-network=10.200.0.0/16", "--never-route=10.200.1.5")


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_in(netns, WIDE) as made:
        yield made


async def test_what_must_not_be_carried_is_refused_and_shown_and_the_others_are_carried(cluster: Cluster) -> None:
    for cidr, (node, public, mac, _) in HOSTILE.items():
        await cluster.join(node, public, mac, cidr)
    await cluster.join("good", "10.99.0.77", MAC, "10.5.53.0/24")
    async with cluster.dataplane(*LIMITS) as running:
        status = await running.until(peers=1)
        assert (status.peers.total, status.peers.ignored) == (len(HOSTILE) + 1, len(HOSTILE))
        shown = {peer.subnets[0]: peer for peer in await running.peers()}
        for cidr, (_, _, _, reason) in HOSTILE.items():
            assert shown[cidr].state == pb.PEER_STATE_IGNORED
            assert reason in shown[cidr].reason
            assert not list(shown[cidr].objects)
        (route,) = cluster.ip("route show proto 77").splitlines()
        assert route.startswith("10.5.53.0/24 via 10.5.53.0 dev flannel.1 ")
        assert cluster.fdb() == [f"{MAC} dst 10.99.0.77 self permanent"]
        assert cluster.ip("route get 10.99.0.12").startswith("10.99.0.12 dev eth0 ")
        await cluster.join("n3", "10.99.0.13", "02:00:00:00:00:03", "10.5.60.0/24")
        await running.until(peers=2)


async def test_a_network_that_the_operator_does_not_allow_is_a_reason_and_nothing_is_programmed(
    cluster: Cluster,
) -> None:
    await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
    async with cluster.dataplane("--allowed-network=172.16.0.0/12") as running:
        await eventually(running.reasons, contains("lies outside what --allowed-network allows here"))
        assert "flannel" not in cluster.ip("-br link")


async def test_our_own_lease_is_not_used_where_the_operator_does_not_allow_it(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", MAC, "10.6.53.0/24")
    async with cluster.dataplane("--allowed-network=10.6.0.0/16") as running:
        status = await eventually(
            running.status, lambda status: "the own lease cannot be used" in " ".join(status.reasons)
        )
        assert "subnet 10.5.27.0/24 lies outside" in " ".join(status.reasons)
        await running.until(ready=False, peers=1)
        assert "inet 10.5." not in cluster.ip("addr show flannel.1")
        assert "FLANNEL_NETWORK" not in (cluster.directory / "subnet.env").read_text()
