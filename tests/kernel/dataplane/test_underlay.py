"""An underlay that moves under a running dataplane: followed without a restart, and the pods keep their subnet."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest_asyncio

from flannelette.lease.v1 import lease_pb2
from tests.hosts.dataplane import HOST_GW, Cluster, Running, cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.waiting import contains, eventually

MAC: Final = "06:0c:56:6d:fb:b3"
ROUTE: Final = "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"


@pytest_asyncio.fixture
async def running(cluster: Cluster) -> AsyncIterator[Running]:
    """A dataplane with one peer, whose comparisons are seldom: what it follows, it has heard of."""
    await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
    async with cluster.dataplane("--audit-interval=600") as made:
        await made.until(peers=1)
        yield made


async def handled(cluster: Cluster, running: Running) -> None:
    """Returns once the dataplane has done what follows from what the kernel has told: its last word is a new MTU."""
    for name in ("far", "eth0"):
        cluster.ip(f"link set {name} mtu 1400")
    await running.until(mtu=1350)


def add_interface(cluster: Cluster, name: str, address: str) -> None:
    cluster.ip(f"link add {name} type veth peer {name}-far")
    for each in (name, f"{name}-far"):
        cluster.ip(f"link set {each} up")
    cluster.ip(f"addr add {address} dev {name}")


async def follows(cluster: Cluster, running: Running, interface: str, address: str) -> None:
    """Returns when it stands on this interface and address, the peer is carried and everybody is told."""
    said = ""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                status = await running.status()
                lease = await own_lease(cluster)
                said = f"{status}\n{lease}"
                is_there = (status.underlay.interface, list(status.underlay.addresses)) == (interface, [address])
                if is_there and status.ready and status.peers.programmed == 1:
                    part = lease.subnets[0]
                    assert part.cidr == "10.5.27.0/24"
                    if part.public_address == address:
                        break
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not followed to {interface} {address}: {said}\n{running.log}") from None
    assert cluster.routes() == [ROUTE]
    assert cluster.fdb() == [f"{MAC} dst 10.99.0.12 self permanent"]
    shown = cluster.ip("-d link show flannel.1")
    assert f" local {address} dev {interface} " in shown
    (device,) = (await running.status()).devices
    assert f"link/ether {device.mac} " in shown
    assert lease.subnets[0].vxlan.mac == device.mac


async def own_lease(cluster: Cluster) -> lease_pb2.Lease:
    async with cluster.calls() as stub:
        leases = (await stub.ListLeases(lease_pb2.ListLeasesRequest(), timeout=PATIENCE)).leases
    return next(lease for lease in leases if lease.node == "n1")


async def test_a_default_route_that_moves_to_another_interface_is_followed(
    cluster: Cluster, running: Running
) -> None:
    add_interface(cluster, "eth1", "10.98.0.11/16")
    cluster.ip("route replace default via 10.98.0.1 dev eth1")
    await follows(cluster, running, "eth1", "10.98.0.11")
    cluster.ip("route replace default via 10.99.0.1 dev eth0")
    await follows(cluster, running, "eth0", "10.99.0.11")
    assert running.log.count("underlay chosen") == 3


async def test_a_second_default_route_counts_by_its_metric(cluster: Cluster, running: Running) -> None:
    add_interface(cluster, "eth1", "10.98.0.11/16")
    cluster.ip("route add default via 10.98.0.1 dev eth1 metric 100")
    await handled(cluster, running)
    await follows(cluster, running, "eth0", "10.99.0.11")
    cluster.ip("route del default via 10.99.0.1 dev eth0")
    await follows(cluster, running, "eth1", "10.98.0.11")


async def test_the_interface_of_a_flag_is_kept_whatever_the_default_route_does(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
    async with cluster.dataplane("--audit-interval=600", "--iface=eth0") as running:
        await running.until(peers=1)
        add_interface(cluster, "eth1", "10.98.0.11/16")
        cluster.ip("route replace default via 10.98.0.1 dev eth1")
        await handled(cluster, running)
        await running.resync()
        await follows(cluster, running, "eth0", "10.99.0.11")


async def test_an_address_that_is_added_changes_nothing_and_takes_over_when_the_first_goes(
    cluster: Cluster, running: Running
) -> None:
    cluster.ip("addr add 10.99.0.111/16 dev eth0")
    cluster.ip("addr add 10.97.0.111/16 dev eth0")
    await handled(cluster, running)
    await follows(cluster, running, "eth0", "10.99.0.11")
    assert running.log.count("underlay chosen") == 1
    cluster.ip("addr del 10.97.0.111/16 dev eth0")
    cluster.run("sysctl -qw net.ipv4.conf.eth0.promote_secondaries=1")
    cluster.ip("addr del 10.99.0.11/16 dev eth0")
    cluster.ip("route replace default via 10.99.0.1")
    await follows(cluster, running, "eth0", "10.99.0.111")


async def test_an_mtu_that_changes_is_that_of_the_device_and_of_new_pods(cluster: Cluster, running: Running) -> None:
    for mtu in (9000, 1400):
        for name in ("eth0", "far"):
            cluster.ip(f"link set {name} mtu {mtu}")
        await running.until(mtu=mtu - 50)
        await eventually(lambda: cluster.ip("link show flannel.1"), contains(f" mtu {mtu - 50} "))
        await follows(cluster, running, "eth0", "10.99.0.11")
        assert f"FLANNEL_MTU={mtu - 50}\n" in (cluster.directory / "subnet.env").read_text()
    assert "running pods keep their previous values" in running.log


async def test_an_interface_that_is_made_again_under_another_index_is_taken(
    cluster: Cluster, running: Running
) -> None:
    before = cluster.ip("-o link show eth0").split(":")[0]
    cluster.ip("link del eth0")
    await running.until(ready=False)
    add_interface(cluster, "spare", "10.96.0.1/24")
    cluster.ip("link add eth0 type veth peer far")
    for name in ("eth0", "far"):
        cluster.ip(f"link set {name} up")
    cluster.ip("addr add 10.99.0.11/16 dev eth0")
    cluster.ip("route add default via 10.99.0.1")
    assert cluster.ip("-o link show eth0").split(":")[0] != before
    await follows(cluster, running, "eth0", "10.99.0.11")


async def test_an_interface_that_goes_down_and_up_carries_again(cluster: Cluster, running: Running) -> None:
    cluster.ip("link set eth0 down")
    await asyncio.sleep(0.2)
    cluster.ip("link set eth0 up")
    cluster.ip("route replace default via 10.99.0.1")
    await follows(cluster, running, "eth0", "10.99.0.11")


async def test_host_gw_moves_its_routes_too(netns: NetworkNamespace) -> None:
    with cluster_in(netns, HOST_GW) as cluster:
        await cluster.join("n2", "10.98.0.12", subnet="10.5.53.0/24")
        async with cluster.dataplane("--audit-interval=600") as running:
            assert (await running.until()).peers.failed == 1
            add_interface(cluster, "eth1", "10.98.0.11/16")
            cluster.ip("route replace default via 10.98.0.1 dev eth1")
            await running.until(peers=1)
            assert cluster.routes() == ["10.5.53.0/24 via 10.98.0.12 dev eth1 proto 77 metric 1334"]
            assert (await running.status()).lease.subnets == ["10.5.27.0/24"]


async def test_the_address_of_every_virtualbox_guest_is_warned_about(netns: NetworkNamespace) -> None:
    with cluster_in(netns) as cluster:
        cluster.ip("addr del 10.99.0.11/16 dev eth0")
        cluster.ip("addr add 10.0.2.15/24 dev eth0")
        cluster.ip("route replace default via 10.0.2.2")
        async with cluster.dataplane() as running:
            await running.until()
            assert "every VirtualBox guest has the address 10.0.2.15" in running.log


async def test_an_ipv6_network_on_a_link_local_address_is_refused_in_a_sentence(netns: NetworkNamespace) -> None:
    ipv6 = '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}'
    with cluster_in(netns, ipv6) as cluster:
        await cluster.quiet()
        code, output = await asyncio.to_thread(cluster.try_to_run, "--iface=eth0")
        assert code == 1
        assert "interface eth0 (--iface eth0) has no IPv6 address but link-local ones" in output
        assert "Traceback" not in output


async def test_a_node_returns_to_its_own_address_from_a_virtual_one_once_dhcp_has_given_it_back(
    cluster: Cluster, running: Running
) -> None:
    """keepalived's address lies in the same network, and is the primary one from then on."""
    cluster.run("sysctl -qw net.ipv4.conf.eth0.promote_secondaries=1")
    own = "10.99.0.11/16 dev eth0 valid_lft 3600 preferred_lft 3600"
    cluster.ip("addr add 10.99.0.200/16 dev eth0")
    cluster.ip(f"addr change {own}")
    await follows(cluster, running, "eth0", "10.99.0.11")
    cluster.ip("addr del 10.99.0.11/16 dev eth0")
    await follows(cluster, running, "eth0", "10.99.0.200")
    cluster.ip(f"addr add {own}")
    assert " secondary dynamic " in cluster.ip("addr show dev eth0 to 10.99.0.11")
    await follows(cluster, running, "eth0", "10.99.0.11")
    cluster.ip("addr del 10.99.0.200/16 dev eth0")
    await follows(cluster, running, "eth0", "10.99.0.11")


async def test_a_default_route_over_several_next_hops_tells_the_interface(cluster: Cluster) -> None:
    add_interface(cluster, "eth1", "10.98.0.11/16")
    cluster.ip("route replace default nexthop via 10.99.0.1 dev eth0 nexthop via 10.98.0.1 dev eth1")
    async with cluster.dataplane() as running:
        status = await running.until()
        assert (status.underlay.interface, status.underlay.reason) == ("eth0", "has the default route")
