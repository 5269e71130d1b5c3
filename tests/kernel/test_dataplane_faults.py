"""What somebody else does to our objects is put right within a second; what is not ours stays."""

import asyncio
import resource
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from flannelette.dataplane.v1 import dataplane_pb2 as pb

from tests.kernel.dataplane_host import Cluster, Running, cluster_in
from tests.namespaces import NetworkNamespace
from tests.patience import PATIENCE

SUBNETS = ("10.5.53.0/24", "10.5.97.0/24")
ROUTES = [
    "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink",
    "10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink",
]
FDB = [
    "06:0c:56:6d:fb:b3 dst 10.99.0.12 self permanent",
    "0e:9d:40:24:9e:77 dst 10.99.0.13 self permanent",
]
NEIGHBOURS = ["10.5.53.0 lladdr 06:0c:56:6d:fb:b3 PERMANENT", "10.5.97.0 lladdr 0e:9d:40:24:9e:77 PERMANENT"]


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_in(netns) as made:
        yield made


@pytest_asyncio.fixture
async def running(cluster: Cluster) -> AsyncIterator[Running]:
    """A dataplane with the two peers above, its comparisons seldom, and nothing left to happen by itself."""
    async with cluster.dataplane("--audit-interval=600") as made:
        await made.until()
        await join(cluster)
        await made.until(peers=2)
        await cluster.quiet()
        await made.quiet()
        yield made


async def join(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", "06:0c:56:6d:fb:b3", SUBNETS[0])
    await cluster.join("n3", "10.99.0.13", "0e:9d:40:24:9e:77", SUBNETS[1])


def programmed(cluster: Cluster) -> tuple[list[str], ...]:
    if "flannel.1" not in cluster.ip("-br link"):
        return ()
    routes = [route for route in cluster.routes() if " proto 77 " in route]
    return routes, cluster.fdb(), cluster.neighbours()


COMPLETE = (ROUTES, FDB, NEIGHBOURS)


async def healed(cluster: Cluster) -> None:
    """Returns once everything is back: by an event, for the next audit is minutes away. How fast, a bench tells."""
    deadline = time.monotonic() + PATIENCE
    while (now := programmed(cluster)) != COMPLETE and time.monotonic() < deadline:  # noqa: ASYNC110 - the kernel is polled
        await asyncio.sleep(0.01)
    assert now == COMPLETE


@pytest.mark.parametrize(
    ("fault", "causes", "words"),
    [
        ("ip link set eth0 down", {}, ""),
        ("ip route flush proto 77", {"ROUTE_DELETED": 2}, "route deleted on flannel.1, 2 times"),
        ("ip route del 10.5.53.0/24", {"ROUTE_DELETED": 1}, "route deleted on flannel.1"),
        (
            "ip route replace 10.5.53.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1334 onlink",
            {"ROUTE_CHANGED": 1},
            "route changed on flannel.1",
        ),
        (
            "ip neigh flush dev flannel.1 nud permanent",
            {"NEIGHBOUR_DELETED": 2},
            "neighbour deleted on flannel.1, 2 times",
        ),
        ("ip neigh del 10.5.97.0 dev flannel.1", {"NEIGHBOUR_DELETED": 1}, "neighbour deleted on flannel.1"),
        (
            "bridge fdb del 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12",
            {"FDB_ENTRY_DELETED": 1},
            "fdb entry deleted on flannel.1",
        ),
        ("ip link set flannel.1 mtu 1400", {"MTU_CHANGED": 1}, "mtu changed on flannel.1"),
        (
            "ip neigh replace 10.5.53.0 lladdr 02:00:00:00:00:09 dev flannel.1 nud permanent",
            {"NEIGHBOUR_CHANGED": 1},
            "neighbour changed on flannel.1",
        ),
        (
            "ip neigh change 10.5.53.0 lladdr 06:0c:56:6d:fb:b3 dev flannel.1 nud stale",
            {"NEIGHBOUR_CHANGED": 1},
            "neighbour changed on flannel.1",
        ),
        ("ip link set flannel.1 type vxlan learning", {"LINK_CHANGED": 1}, "link changed on flannel.1"),
    ],
)
async def test_defect_05_a_fault_in_what_peers_need_is_healed(
    cluster: Cluster, running: Running, fault: str, causes: dict[str, int], words: str
) -> None:
    before = cluster.ip("-d link show flannel.1")
    cluster.run(fault)
    if "eth0 down" in fault:
        cluster.ip("link set eth0 up")
    await healed(cluster)
    await running.until(peers=2)
    await cluster.quiet()
    now = cluster.ip("-d link show flannel.1")
    assert now == before
    assert await running.repairs() == causes
    events = await running.events(kinds=[pb.EVENT_KIND_REPAIR])
    assert [event.cause for event in events] == [words] * bool(causes)
    assert all(event.microseconds > 0 for event in events)
    assert running.log.count("what is ours in the kernel was changed") == len(causes)


async def test_defect_04_a_device_that_went_down_has_its_routes_again(cluster: Cluster, running: Running) -> None:
    before = cluster.ip("-d link show flannel.1")
    cluster.ip("link set flannel.1 down")
    await healed(cluster)
    await running.until(peers=2)
    await cluster.quiet()
    assert cluster.ip("-d link show flannel.1") == before
    assert await running.repairs() == {"LINK_DOWN": 1 + len(ROUTES) + len(NEIGHBOURS)}
    device, objects = await running.events(kinds=[pb.EVENT_KIND_REPAIR])
    assert device.what == "put right: ip link set flannel.1 up"
    assert objects.what.startswith("put right: 2 routes, 2 neighbours: 10.5.97.0/24 via 10.5.97.0 dev flannel.1")
    assert sorted(peer.node for peer in objects.peers) == ["n2", "n3"]


@pytest.mark.parametrize("fault", ["name other", "master bridge", "protodown on"])
async def test_a_device_that_is_there_and_carries_nothing_any_more_is_put_right(
    cluster: Cluster, running: Running, fault: str
) -> None:
    def shown() -> str:
        """Its state is UNKNOWN until it had none once."""
        return cluster.ip("-d link show flannel.1").replace(" state UP ", " state UNKNOWN ")

    cluster.ip("link add bridge type bridge")
    before = shown()
    cluster.ip(f"link set flannel.1 {fault}")
    async with asyncio.timeout(10):
        while "flannel.1" not in cluster.ip("-br link") or shown() != before:  # noqa: ASYNC110 - the kernel is polled
            await asyncio.sleep(0.01)
    await healed(cluster)
    await running.until(peers=2)
    await cluster.quiet()
    assert shown() == before
    cluster.ip("link set flannel.1 address 02:00:00:00:00:09 name elsewhere")
    await healed(cluster)
    await running.until(peers=2)
    assert shown() == before
    assert list((await running.resync(dry_run=True)).commands) == []


async def test_a_device_that_cannot_be_made_names_the_one_in_its_way_and_is_made_once_that_is_gone(
    cluster: Cluster, running: Running
) -> None:
    rival = "link add vx9 type vxlan id 1 dstport 8472 local 10.99.0.11 dev eth0 nolearning"
    batch = cluster.directory / "batch"
    batch.write_text(f"link del flannel.1\n{rival}\n")
    running.process.send_signal(signal.SIGSTOP)
    cluster.ip(f"-batch {batch}")
    running.process.send_signal(signal.SIGCONT)
    status = await running.until(ready=False)
    assert status.reasons[0].endswith("failed: File exists; vx9 has the same VNI and port")
    cluster.ip("link del vx9")
    await healed(cluster)
    await running.until(peers=2)


async def test_a_device_that_was_deleted_is_made_again_with_everything_on_it(
    cluster: Cluster, running: Running
) -> None:
    cluster.ip("link del flannel.1")
    await healed(cluster)
    await running.until(peers=2)
    assert await running.repairs() == {"LINK_DELETED": 1 + len(ROUTES) + len(NEIGHBOURS) + len(FDB)}


async def test_defect_18_a_notification_that_is_lost_is_a_look_at_everything(
    cluster: Cluster, running: Running
) -> None:
    pair = "route add 203.0.113.7/32 dev lo proto 99\nroute del 203.0.113.7/32 dev lo proto 99\n"
    batch = cluster.directory / "flood"
    batch.write_text(15_000 * pair)
    running.process.send_signal(signal.SIGSTOP)
    try:
        cluster.ip(f"-batch {batch}")  # several times what its queue holds
        cluster.run("bridge fdb del 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12")
        cluster.ip("neigh del 10.5.97.0 dev flannel.1")
    finally:
        running.process.send_signal(signal.SIGCONT)
    await healed(cluster)
    assert running.process.poll() is None
    await running.until(peers=2)
    assert await running.repairs() == {"NOTIFICATIONS_LOST": 2}


async def test_an_address_that_was_removed_comes_back(cluster: Cluster, running: Running) -> None:
    own = (await running.status()).lease.subnets[0].split("/")[0]
    cluster.ip(f"addr del {own}/32 dev flannel.1")
    cluster.ip("addr add 10.5.200.7/24 dev flannel.1")
    async with asyncio.timeout(PATIENCE):
        while f"inet {own}/32 " not in (shown := cluster.ip("addr show flannel.1")) or "10.5.200.7" in shown:  # noqa: ASYNC110 - the kernel is polled
            await asyncio.sleep(0.01)
    await healed(cluster)
    assert "ADDRESS_REMOVED" in await running.repairs()


async def test_what_the_kernel_does_not_tell_is_found_by_an_audit(cluster: Cluster, running: Running) -> None:
    cluster.run("bridge fdb replace 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.99 self permanent")
    await running.resync()
    assert await running.repairs() == {"AUDIT": 1}


async def test_a_burst_of_faults_is_one_comparison_or_two(cluster: Cluster, running: Running) -> None:
    turns = len(await running.events(kinds=[pb.EVENT_KIND_REPAIR]))
    for _ in range(5):
        for mac, dst in (("06:0c:56:6d:fb:b3", "10.99.0.12"), ("0e:9d:40:24:9e:77", "10.99.0.13")):
            cluster.run(f"bridge fdb replace {mac} dev flannel.1 dst {dst} self permanent")
    cluster.ip("route flush proto 77")
    await healed(cluster)
    await asyncio.sleep(0.3)
    assert len(await running.events(kinds=[pb.EVENT_KIND_REPAIR])) - turns <= 2


async def test_a_peer_that_leaves_leads_to_no_comparison_of_everything(cluster: Cluster, running: Running) -> None:
    before = await running.status()
    await cluster.leave("n2", "10.5.53.0-24")
    await running.until(peers=1)
    await asyncio.sleep(0.3)
    after = await running.status()
    assert after.last_resync_time == before.last_resync_time
    assert cluster.fdb() == FDB[1:]


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
    await asyncio.sleep(0.3)
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


async def test_a_process_without_a_file_descriptor_left_says_so_goes_on_and_catches_up(
    cluster: Cluster, running: Running
) -> None:
    async def said(words: str) -> None:
        async with asyncio.timeout(20):
            while words not in running.log:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)

    pid = running.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    cluster.ip("link del flannel.1")
    await said("Too many open files")
    cluster.leases.kill()
    await said("the lease service is away")
    cluster.leases = cluster.start_leases()
    await asyncio.sleep(1)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    await healed(cluster)
    await running.until(peers=2)
    assert "Traceback" not in running.log
