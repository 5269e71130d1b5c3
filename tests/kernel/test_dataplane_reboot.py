"""A reboot while nobody tells any leases: packets flow by what the node remembers, which nothing is lost for."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from flannelette.dataplane.v1 import dataplane_pb2 as pb

from lab.pings import Pinger
from lab.stream import Path as Way
from lab.stream import Stream
from services.runtime.memory import Memory, decode, encode
from tests.kernel.dataplane_host import Cluster, Running, cluster_in
from tests.kernel.test_dataplane_families import DUAL, join, routes_v6, with_ipv6
from tests.kernel.test_dataplane_life import route
from tests.lease_service import eventually
from tests.namespaces import NamespaceMaker, NetworkNamespace

MAC, OTHER_MAC, THIRD_MAC = "06:0c:56:6d:fb:b3", "06:0c:56:6d:fb:b4", "06:0c:56:6d:fb:b5"
REMEMBERED = "the leases are those of "


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_in(netns) as made:
        yield made


def reboot(cluster: Cluster, make_netns: NamespaceMaker) -> None:
    """What is in the kernel and under /run is gone."""
    cluster.namespace = make_netns()
    cluster.ip("link add eth0 type veth peer far")
    for name in ("eth0", "far"):
        cluster.ip(f"link set {name} up")
    cluster.ip("address add 10.99.0.11/16 dev eth0")
    cluster.ip("route add default via 10.99.0.1")
    (cluster.directory / "subnet.env").unlink()


def state_file(cluster: Cluster) -> Path:
    return cluster.directory / "state/dataplane.state"


def memory(cluster: Cluster) -> Memory:
    return decode("dataplane", state_file(cluster).read_bytes(), "n1")


@asynccontextmanager
async def restarted(cluster: Cluster, *arguments: str) -> AsyncIterator[Running]:
    """A dataplane that finds no subnet.env, which Cluster.dataplane would give it."""
    running = Running(cluster, arguments, ())
    try:
        yield running
    finally:
        await running.end(9)


async def remembering(running: Running, peers: int) -> pb.Status:
    status = await running.until(ready=False, peers=peers)
    assert any(reason.startswith(REMEMBERED) for reason in status.reasons), status.reasons
    assert not any("connect failed" in reason for reason in status.reasons)  # nobody is asked who is not there
    return status


async def test_after_a_reboot_everything_is_as_it_was_and_status_says_since_when(
    cluster: Cluster, make_netns: NamespaceMaker
) -> None:
    async with cluster.dataplane("--ip-masq") as running:
        names = [await cluster.join(f"n{n}", f"10.99.0.{10 + n}", f"06:0c:56:6d:fb:{n:02x}") for n in range(2, 7)]
        before = await running.until(peers=5)
        await running.end()
    assert state_file(cluster).stat().st_mode & 0o777 == 0o600
    subnet_env = (cluster.directory / "subnet.env").read_text()
    cluster.leases.terminate()
    reboot(cluster, make_netns)
    async with restarted(cluster, "--ip-masq") as running:
        status = await remembering(running, peers=5)
        assert not status.lease_service_connected
        assert (cluster.directory / "subnet.env").read_text() == subnet_env
        assert status.lease.subnets == before.lease.subnets
        assert [device.mac for device in status.devices] == [device.mac for device in before.devices]
        assert cluster.routes() == sorted(map(route, names))
        assert f"inet {status.lease.subnets[0].split('/')[0]}/32" in cluster.ip("addr show flannel.1")
        cluster.ip("route flush proto 77")
        await eventually(lambda: cluster.routes() == sorted(map(route, names)))  # it heals meanwhile
        assert (await running.resync(dry_run=True)).commands == []

        cluster.leases = cluster.start_leases()
        status = await running.until(peers=5)
        assert (status.lease.name, status.last_resync_changes) == (before.lease.name, 0)
        assert running.log.count(" of before are in force") == 1
        assert running.log.count("] ready ") == 2  # one in each life


async def test_what_has_changed_meanwhile_is_applied_with_the_first_snapshot_and_not_before(
    cluster: Cluster, make_netns: NamespaceMaker
) -> None:
    async with cluster.dataplane() as running:
        left = await cluster.join("n2", "10.99.0.12", MAC)
        stays = await cluster.join("n3", "10.99.0.13", OTHER_MAC)
        await running.until(peers=2)
        await running.end()
    await cluster.leave("n2", left)
    new = await cluster.join("n4", "10.99.0.14", THIRD_MAC)
    cluster.leases.terminate()
    reboot(cluster, make_netns)
    async with restarted(cluster) as running:
        await remembering(running, peers=2)
        assert cluster.routes() == sorted([route(left), route(stays)])
        cluster.leases = cluster.start_leases()
        status = await running.until(peers=2)
        assert cluster.routes() == sorted([route(stays), route(new)])
        assert status.repairs == 0


async def test_what_the_kernel_has_is_newer_than_what_is_remembered(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        name = await cluster.join("n2", "10.99.0.12", MAC)
        await running.until(peers=1)
        await running.end()
    subnet = name.split("-")[0]
    for line in (
        f"neigh replace {subnet} lladdr {OTHER_MAC} dev flannel.1 nud permanent",  # it changed, and was not written
        "route add 10.5.99.0/24 via 10.5.99.0 dev flannel.1 proto 77 metric 1380 onlink",  # it came likewise
    ):
        cluster.ip(line)
    cluster.run(f"bridge fdb replace {OTHER_MAC} dev flannel.1 dst 10.99.0.12 self permanent")
    kept = cluster.routes(), cluster.neighbours()
    cluster.leases.terminate()
    async with restarted(cluster) as running:
        await eventually(lambda: " of before are in force" in running.log)
        await running.resync()
        assert (cluster.routes(), cluster.neighbours()) == kept
        cluster.leases = cluster.start_leases()
        await running.until(peers=1)
        assert cluster.routes() == [route(name)]
        assert cluster.neighbours() == [f"{subnet} lladdr {MAC} PERMANENT"]


@pytest.mark.parametrize("backend", ["vxlan", "host-gw"])
async def test_both_families_and_both_backends_come_back(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str
) -> None:
    with with_ipv6(netns, DUAL % backend) as cluster:
        async with cluster.dataplane("--ip-blackhole-route") as running:
            macs = (MAC, OTHER_MAC) if backend == "vxlan" else ("", "")
            parts = (("10.5.53.0/24", "10.99.0.12", macs[0]), ("fd00:10:5:35::/64", "fd00:99::12", macs[1]))
            await join(cluster, "n2", *parts)
            before = await running.until(peers=1)
            objects = [[item.text for item in peer.objects] for peer in await running.peers()]
            routes, subnet_env = routes_v6(cluster), (cluster.directory / "subnet.env").read_text()
            await running.end()
        cluster.leases.terminate()
        reboot(cluster, make_netns)
        cluster.ip("addr add fd00:99::11/64 dev eth0 nodad")
        cluster.ip("route add default via fd00:99::1 dev eth0")
        async with restarted(cluster, "--ip-blackhole-route") as running:
            status = await remembering(running, peers=1)
            assert [[item.text for item in peer.objects] for peer in await running.peers()] == objects
            assert (routes_v6(cluster), (cluster.directory / "subnet.env").read_text()) == (routes, subnet_env)
            assert [(d.name, d.mac) for d in status.devices] == [(d.name, d.mac) for d in before.devices]
            assert len(cluster.ip("route show type blackhole").splitlines()) == 1


async def test_remembered_leases_keep_to_the_rules_of_the_node(cluster: Cluster, make_netns: NamespaceMaker) -> None:
    async with cluster.dataplane() as running:
        await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
        kept = await cluster.join("n3", "10.99.0.13", OTHER_MAC, "10.5.200.0/24")
        await running.until(peers=2)
        await running.end()
    cluster.leases.terminate()
    reboot(cluster, make_netns)
    async with restarted(cluster, "--allowed-network=10.5.128.0/17", "--ip-blackhole-route") as running:
        status = await remembering(running, peers=1)
        assert status.peers.ignored == 1
        assert cluster.routes() == [route(kept)]  # and no blackhole
        assert not (cluster.directory / "subnet.env").exists()
        assert any("the own lease cannot be used" in line for line in running.log.splitlines())


async def test_a_lease_service_that_answers_is_not_preceded_by_what_is_remembered(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await cluster.join("n2", "10.99.0.12", MAC)
        await running.until(peers=1)
        await running.end()
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        await asyncio.sleep(1.2)
        assert " of before are in force" not in running.log


async def test_an_own_lease_that_has_run_out_is_not_used_and_the_peers_are_kept(
    cluster: Cluster, make_netns: NamespaceMaker
) -> None:
    async with cluster.dataplane() as running:
        name = await cluster.join("n2", "10.99.0.12", MAC)
        before = await running.until(peers=1)
        await running.end()
    found = memory(cluster)
    assert found.own is not None
    gone = replace(found.own, expires_at=1_000_000.0)
    state_file(cluster).write_bytes(b"".join(encode("dataplane", "n1", gone, found.former, [found.snapshot])))
    cluster.leases.terminate()
    reboot(cluster, make_netns)
    async with restarted(cluster) as running:
        status = await remembering(running, peers=1)
        assert not status.HasField("lease")
        assert not (cluster.directory / "subnet.env").exists()
        assert cluster.routes() == [route(name)]
        assert "inet 10.5." not in cluster.ip("addr show flannel.1")
        assert "it has run out" in running.log
        cluster.leases = cluster.start_leases()  # which still has it
        status = await running.until(peers=1)
        assert status.lease.subnets == before.lease.subnets
        assert status.devices[0].mac == before.devices[0].mac


async def test_the_subnet_and_the_mac_are_asked_for_again_when_the_lease_is_gone_after_a_reboot(
    cluster: Cluster, make_netns: NamespaceMaker
) -> None:
    """subnet.env is gone with /run, the MAC was not the one that we make, and nobody else remembers either."""
    mac = "9e:11:22:33:44:55"
    cluster.ip(f"link add flannel.1 address {mac} mtu 1450 type vxlan id 1 local 10.99.0.11 dev eth0 dstport 8472")
    async with cluster.dataplane() as running:
        before = await running.until()
        assert before.devices[0].mac == mac
        await running.end()
    await cluster.leave("n1", before.lease.name)
    reboot(cluster, make_netns)
    async with restarted(cluster) as running:
        status = await running.until()
        assert status.lease.subnets == before.lease.subnets
        assert status.devices[0].mac == mac


@pytest.mark.parametrize("damage", ["damaged", "foreign", "of another node"])
async def test_a_file_that_cannot_be_used_is_refused_in_one_line_and_kept(cluster: Cluster, damage: str) -> None:
    async with cluster.dataplane() as running:
        await cluster.join("n2", "10.99.0.12", MAC)
        await running.until(peers=1)
        await running.end()
    path = state_file(cluster)
    data = path.read_bytes()
    bad = {
        "damaged": data[:-1] + bytes([data[-1] ^ 1]),
        "foreign": b"root:x:0:0:root:/root:/bin/bash\n",
        "of another node": b"".join(encode("dataplane", "n7", None, (), [memory(cluster).snapshot])),
    }[damage]
    path.write_bytes(bad)
    cluster.leases.terminate()
    async with cluster.dataplane() as running:
        await asyncio.sleep(1.5)
        assert " of before are in force" not in running.log
        assert path.read_bytes() == bad
        cluster.leases = cluster.start_leases()
        await running.until(peers=1)
        await running.end()
        assert running.log.count("the state is not used") == 1
    assert path.with_suffix(".refused").read_bytes() == bad
    assert len(memory(cluster).table().leases) == 2


async def test_a_directory_that_cannot_be_used_costs_only_the_memory(cluster: Cluster) -> None:
    async with cluster.dataplane("--state-dir=/proc/no") as running:
        await running.until()
        assert running.log.count("nothing is remembered") == 1
        await running.end()
    async with cluster.dataplane("--state-dir=") as running:
        await running.until()
        assert running.log.count("nothing is remembered") == 1
        await running.end()
    assert not state_file(cluster).exists()


async def test_two_dataplanes_never_share_what_they_remember(cluster: Cluster, make_netns: NamespaceMaker) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        first, home = cluster.namespace, cluster.directory / "other"
        home.mkdir()
        reboot(cluster, make_netns)
        async with restarted(cluster, f"--socket-dir={home}", f"--lease-address={cluster.leases.address}") as second:
            await eventually(lambda: "another dataplane keeps its state in" in second.log)
        cluster.namespace = first


async def test_a_stream_of_pings_is_answered_after_the_reboot_and_while_the_service_returns(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    underlay, n2 = make_netns(), make_netns()
    underlay.ip("link", "add", "bridge", "type", "bridge")
    underlay.ip("link", "set", "bridge", "up")

    def plug(host: NetworkNamespace, number: int) -> None:
        underlay.ip("link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", host.name)
        underlay.ip("link", "set", f"port{number}", "master", "bridge", "up")
        for line in (f"address add 10.99.0.1{number}/16 dev eth0", "link set eth0 up", "route add default dev eth0"):
            host.ip(*line.split())

    def pods(host: NetworkNamespace, subnet: str) -> str:
        gateway = subnet.replace(".0/24", ".1")
        host.ip("address", "add", f"{gateway}/32", "dev", "lo")
        return gateway

    with cluster_in(netns) as cluster:
        cluster.namespace = make_netns()
        plug(cluster.namespace, 1)
        plug(n2, 2)
        home = cluster.directory / "n2"
        home.mkdir()
        places = (f"--socket-dir={home}", f"--subnet-file={home}/subnet.env", f"--state-dir={home}/state")
        first, cluster.namespace = cluster.namespace, n2
        async with cluster.dataplane("--node=n2", *places, f"--lease-address={cluster.leases.address}"):
            cluster.namespace = first
            async with cluster.dataplane() as running:
                status = await running.until(peers=1)
                (peer,) = await running.peers()
                await running.end()
            target = pods(n2, peer.subnets[0])
            cluster.leases.terminate()
            underlay.ip("link", "del", "port1")  # the power is off
            cluster.namespace = make_netns()
            plug(cluster.namespace, 1)
            source = pods(cluster.namespace, status.lease.subnets[0])
            async with restarted(cluster) as running:
                await remembering(running, peers=1)
                with Pinger(cluster.namespace, 4) as pinger:
                    async with Stream([Way("n1", "n2", pinger, ip_address(target))]) as stream:
                        await asyncio.sleep(0.5)
                        cluster.leases = cluster.start_leases()
                        status = await running.until(peers=1)
                        await asyncio.sleep(0.5)
                assert (stream.sent > 100, stream.lost) == (True, [])
                assert status.last_resync_changes == 0
                assert source in cluster.ip("addr show lo")
