"""A reboot while nobody tells any leases: packets flow by what the node remembers, which nothing is lost for."""

import asyncio
from ipaddress import ip_address

import pytest

from lab.pings import Pinger
from lab.stream import Path as Way
from lab.stream import Stream
from tests.hosts.dataplane import Cluster, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.reboots import MAC, OTHER_MAC, THIRD_MAC, reboot, remembering, restarted, state_file
from tests.kernel.dataplane.test_families import DUAL, join, routes_v6, with_ipv6
from tests.kernel.dataplane.test_life import route
from tests.waiting import equals, eventually


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
        await eventually(cluster.routes, equals(sorted(map(route, names))))  # it heals meanwhile
        assert (await running.resync(dry_run=True)).commands == []

        cluster.leases = cluster.start_leases()
        status = await running.until(peers=5)
        assert (status.lease.name, status.last_resync_changes) == (before.lease.name, 0)
        assert running.log.count("cached leases are in force") == 1
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
