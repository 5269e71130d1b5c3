"""What somebody else does to our objects is put right at once, by what the kernel tells."""

import asyncio
import resource
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Cluster, Running
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.two_peers import COMPLETE, FDB, NEIGHBOURS, ROUTES, Scene, healed, programmed, state_of, two_peers
from tests.shared import Shared, sharing
from tests.waiting import contains, equals, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Shared[None, Scene]]:
    async with sharing(two_peers, state_of) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def scene(scenes: Shared[None, Scene]) -> AsyncIterator[Scene]:
    async with scenes.borrowed(None) as made:
        await made.running.forget_past()
        yield made


@pytest.fixture
def cluster(scene: Scene) -> Cluster:
    return scene.cluster


@pytest.fixture
def running(scene: Scene) -> Running:
    return scene.running


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
async def test_a_fault_in_what_peers_need_is_healed(
    cluster: Cluster, running: Running, fault: str, causes: dict[str, int], words: str
) -> None:
    """A regression test of defect 5 of flannel v0.28."""
    before = cluster.ip("-d link show flannel.1")
    if "times" in words:  # so that it is told of all of them at once
        running.process.send_signal(signal.SIGSTOP)
    cluster.run(fault)
    running.process.send_signal(signal.SIGCONT)
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
    said = running.log.count("another program changed our kernel objects")
    assert said == len(causes) or causes.keys() <= running.past_repairs.keys(), "the same again is said seldom"


async def test_a_device_that_went_down_has_its_routes_again(cluster: Cluster, running: Running) -> None:
    """A regression test of defect 4 of flannel v0.28."""
    before = cluster.ip("-d link show flannel.1")
    cluster.ip("link set flannel.1 down")
    await healed(cluster)
    await running.until(peers=2)
    await cluster.quiet()
    assert cluster.ip("-d link show flannel.1") == before
    assert await running.repairs() == {"LINK_DOWN": 1 + len(ROUTES) + len(NEIGHBOURS)}
    device, objects = await running.events(kinds=[pb.EVENT_KIND_REPAIR])
    assert device.what == "repaired: ip link set flannel.1 up"
    assert objects.what.startswith("repaired: 2 routes, 2 neighbours: 10.5.97.0/24 via 10.5.97.0 dev flannel.1")
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
    await eventually(lambda: cluster.ip("-br link"), contains("flannel.1"))
    await eventually(shown, equals(before))
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
    status = await running.until(ready=False, because="File exists")
    assert status.reasons[0].endswith("failed: File exists; vx9 has the same VNI 1 and port 8472")
    cluster.ip("link del vx9")
    await healed(cluster)
    await running.until(peers=2)


async def test_a_device_that_was_moved_to_another_namespace_is_told_and_made_again_once_it_is_deleted_there(
    cluster: Cluster, running: Running, make_netns: NamespaceMaker
) -> None:
    other = make_netns()
    cluster.ip(f"link set flannel.1 netns {other.name} name moved0")
    status = await running.until(ready=False, because="File exists")
    assert status.reasons[0].endswith(
        "failed: File exists; probably a device of kind vxlan with VNI 1 and port 8472 was made here and is in "
        "another network namespace now: find it with `ip -d link show type vxlan` (of those that `ip netns list-id` "
        "names, "
        "with `ip -n NAME`; of a container, behind `nsenter -t PID -n`), and delete it there with `ip link del`"
    )
    other.ip("link", "del", "moved0")
    await healed(cluster)
    await running.until(peers=2)


async def test_a_device_that_was_deleted_is_made_again_with_everything_on_it(
    cluster: Cluster, running: Running
) -> None:
    cluster.ip("link del flannel.1")
    await healed(cluster)
    await running.until(peers=2)
    assert await running.repairs() == {"LINK_DELETED": 1 + len(ROUTES) + len(NEIGHBOURS) + len(FDB)}


async def test_a_notification_that_is_lost_is_a_look_at_everything(cluster: Cluster, running: Running) -> None:
    """A regression test of defect 18 of flannel v0.28."""
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
    await eventually(
        lambda: cluster.ip("addr show flannel.1"),
        lambda shown: f"inet {own}/32 " in shown and "10.5.200.7" not in shown,
    )
    await healed(cluster)
    assert "ADDRESS_REMOVED" in await running.repairs()


async def test_a_change_of_a_moment_ago_is_put_right_when_a_resync_returns(
    cluster: Cluster, running: Running
) -> None:
    cluster.run("bridge fdb replace 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.99 self permanent")
    await running.resync()
    assert programmed(cluster) == COMPLETE
    assert await running.repairs() in ({"AUDIT": 1}, {"FDB_ENTRY_CHANGED": 1}), "the kernel tells of it meanwhile"


async def test_a_burst_of_faults_is_one_comparison_or_two(cluster: Cluster, running: Running) -> None:
    turns = len(await running.events(kinds=[pb.EVENT_KIND_REPAIR]))
    for _ in range(5):
        for mac, dst in (("06:0c:56:6d:fb:b3", "10.99.0.12"), ("0e:9d:40:24:9e:77", "10.99.0.13")):
            cluster.run(f"bridge fdb replace {mac} dev flannel.1 dst {dst} self permanent")
    cluster.ip("route flush proto 77")
    await healed(cluster)
    await running.quiet()
    assert len(await running.events(kinds=[pb.EVENT_KIND_REPAIR])) - turns <= 2


async def test_a_process_without_a_file_descriptor_left_says_so_goes_on_and_catches_up(
    cluster: Cluster, running: Running
) -> None:
    async def said(words: str) -> None:
        await eventually(lambda: running.log, contains(words))

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
