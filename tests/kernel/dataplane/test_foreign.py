"""What is not ours stays, is listed, and is noticed when it comes and goes; who does nothing to us wakes nobody."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Cluster, Running
from tests.hosts.two_peers import FDB, ROUTES, SUBNETS, healed, undisturbed
from tests.waiting import eventually


@pytest_asyncio.fixture
async def running(cluster: Cluster) -> AsyncIterator[Running]:
    async with undisturbed(cluster) as made:
        yield made


async def test_a_peer_that_leaves_leads_to_no_comparison_of_everything(cluster: Cluster, running: Running) -> None:
    before = await running.status()
    await cluster.leave("n2", "10.5.53.0-24")
    await running.until(peers=1)
    assert cluster.fdb() == FDB[1:]
    await cluster.join("n4", "10.99.0.14", "06:0c:56:6d:fb:b5", "10.5.55.0/24")
    after = await running.until(peers=2)  # what the other one had led to comes before
    assert after.last_resync_time == before.last_resync_time


async def test_an_idle_service_does_nothing(cluster: Cluster, running: Running) -> None:
    def cpu() -> int:
        words = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(words[11]) + int(words[12])

    start = before = cpu()  # what this machine needs to start one and program two peers, in hundredths of a second
    await asyncio.sleep(2)
    assert cpu() - before <= max(3, start / 20)
    cluster.leases.terminate()
    await running.until(ready=False)
    before = cpu()
    await asyncio.sleep(2)
    assert cpu() - before <= max(6, start / 10)


async def test_foreign_routes_stay_and_are_listed_and_one_that_wins_shadows_the_peer(
    cluster: Cluster, running: Running
) -> None:
    foreign = [
        "10.5.53.0/24 via 10.99.0.99 dev eth0",
        "10.5.97.0/24 via 10.99.0.99 dev eth0 proto static metric 5000",
        "10.5.97.0/24 via 10.99.0.99 dev eth0 proto static metric 6000",
        "10.5.250.0/24 via 10.99.0.98 dev eth0 proto bgp metric 20",
        "unreachable 10.5.251.0/24 proto static",
    ]
    for route in foreign:
        cluster.ip(f"route add {route}")
    cluster.ip("route add 10.6.0.0/24 via 10.99.0.99")
    await running.resync()
    status = await running.status()
    assert sorted(status.unclaimed) == sorted(foreign)
    assert (status.peers.programmed, status.peers.shadowed) == (1, 1)
    (shadowed,) = [p for p in await running.peers() if p.state == pb.PEER_STATE_SHADOWED]
    assert shadowed.name == "10.5.53.0-24"
    assert shadowed.reason == f"a route that is not ours wins: {foreign[0]}"
    cluster.ip("link set flannel.1 down")
    await asyncio.sleep(0.5)
    await running.stub.TeardownKernel(pb.TeardownKernelRequest())
    assert cluster.routes() == sorted(foreign)


async def test_a_foreign_route_in_the_very_place_of_ours_is_not_replaced(cluster: Cluster, running: Running) -> None:
    foreign = "10.5.53.0/24 via 10.99.0.99 dev eth0 proto static metric 1334"
    cluster.ip(f"route replace {foreign}")
    await running.resync()
    assert foreign in cluster.routes()
    await cluster.join("n2", "10.99.0.22", "06:0c:56:6d:fb:b3", SUBNETS[0])
    await eventually(running.peers, lambda peers: "10.99.0.22" in str(peers))
    assert foreign in cluster.routes()
    assert (await running.status()).peers.shadowed == 1
    cluster.ip("route del 10.5.53.0/24 proto static")
    await running.resync()
    assert ROUTES[0] in cluster.routes()


async def test_a_foreign_route_that_comes_and_goes_is_noticed_by_its_notification(
    cluster: Cluster, running: Running
) -> None:
    cluster.ip("link add other type bridge")
    cluster.ip("link set other up")
    for added, taken in (
        ("route add 10.5.53.0/24 via 10.99.0.99 dev eth0 proto bgp metric 20", "route del 10.5.53.0/24 proto bgp"),
        ("route replace 10.5.53.0/24 via 10.99.0.99 dev eth0 metric 1334", "route del 10.5.53.0/24 proto boot"),
        ("route add 10.5.53.0/24 dev other metric 20", "link set other down"),
    ):
        cluster.ip(added)
        status = await running.until(peers=1)
        assert status.peers.shadowed == len(status.unclaimed) == 1
        cluster.ip(taken)
        assert not (await running.until(peers=2)).unclaimed
        await healed(cluster)
    cluster.ip("route add 10.5.53.128/25 via 10.99.0.99 proto bgp")
    await running.until(unclaimed=["10.5.53.128/25 via 10.99.0.99 dev eth0 proto bgp"])


async def test_who_changes_routes_to_own_pods_or_beside_the_network_wakes_nobody(
    cluster: Cluster, running: Running
) -> None:
    before = await running.status()
    own = before.lease.subnets[0].split("/")[0].removesuffix(".0")
    for route in (f"{own}.7/32 dev eth0", "10.6.0.0/24 via 10.99.0.99", "10.5.54.0/24 dev eth0 table 100"):
        cluster.ip(f"route add {route}")
        cluster.ip(f"route del {route}")
    await asyncio.sleep(0.3)
    assert (await running.status()).last_resync_time == before.last_resync_time


async def test_while_it_is_paused_foreign_routes_are_still_noticed(cluster: Cluster, running: Running) -> None:
    foreign = "10.5.53.0/24 via 10.99.0.99 dev eth0 proto bgp metric 20"
    cluster.ip(f"route add {foreign}")
    await running.until(peers=1, unclaimed=[foreign])
    await running.hand_over()
    before = cluster.routes()
    cluster.ip(f"route del {foreign}")
    await running.until(ready=False, peers=0, unclaimed=[])
    assert (await running.status()).peers.shadowed == 0
    assert cluster.routes() == [route for route in before if route != foreign]
