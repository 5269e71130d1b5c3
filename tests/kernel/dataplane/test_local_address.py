"""With --iface and a public address on that interface our device is as flanneld's: its `local` is that address.

Regression tests of hole 12.
"""

import asyncio
from dataclasses import replace
from typing import Final

import pytest

from tests.flannel.turns import assert_turns_change_nothing, node
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import two_hosts

FLAGS: Final = ("--iface=eth0", "--public-ip=10.99.0.21", "--public-ipv6=fd00:99::21")
"""Each is the second address of n1's interface."""


def give_second_addresses(netns: NetworkNamespace) -> None:
    netns.ip("address", "add", "10.99.0.21/16", "dev", "eth0")
    netns.ip("address", "add", "fd00:99::21/64", "dev", "eth0", "nodad")


@pytest.mark.parametrize("families", ["ipv4", "dual"])
async def test_a_device_of_a_flanneld_with_a_public_ip_on_the_interface_stays_and_no_packet_is_lost(
    netns: NetworkNamespace, make_netns: NamespaceMaker, families: str
) -> None:
    flags = FLAGS if families == "dual" else FLAGS[:2]
    async with node(netns, make_netns, "vxlan", families, *flags, before=give_second_addresses) as n1:
        assert all(" local 10.99.0.21 " in device for device in n1.hosts.devices()[:1])
        await assert_turns_change_nothing(n1, *flags, sizes={})


async def test_a_device_that_must_be_replaced_keeps_its_mac(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    """As a flanneld before v0.27.4 left it: `local` is the interface's first address, whatever is public."""
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        give_second_addresses(netns)
        hosts.leave_flanneld_state()
        await hosts.join()
        ((own, _),) = hosts.rows
        with hosts.stream() as stream:
            async with stream, hosts.cluster.dataplane(*FLAGS[:2]) as running:
                status = await running.until(peers=1)
            assert len(stream.lost) < 100, "a second's worth"
        assert " local 10.99.0.21 " in hosts.devices()[0]
        assert [device.mac for device in status.devices] == [own.mac]
        assert list(status.underlay.addresses) == ["10.99.0.21"]


async def test_behind_nat_the_interfaces_own_address_is_local(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        async with hosts.cluster.dataplane("--iface=eth0", "--public-ip=203.0.113.5") as running:
            await running.until(peers=0)
        assert " local 10.99.0.11 " in hosts.devices()[0]


async def test_a_public_address_on_the_loopback_is_local_and_packets_flow_both_ways(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    """BGP to the host: peers reach it by an address that no interface of the underlay has."""
    with two_hosts(netns, make_netns, "vxlan", "dual") as hosts:
        places = {4: ("10.255.0.1", "10.99.0.11", 32), 6: ("fd00:255::1", "fd00:99::11", 128)}
        for version, (public, via, bits) in places.items():
            netns.ip(f"-{version}", *f"addr add {public}/{bits} dev lo".split())
            hosts.n2.ip(f"-{version}", *f"route add {public} via {via} dev eth0".split())
        hosts.rows = [(replace(own, public=places[own.version][0]), peer) for own, peer in hosts.rows]
        hosts.leave_flanneld_state()
        await hosts.join()
        flags = ("--iface=eth0", "--public-ip=10.255.0.1", "--public-ipv6=fd00:255::1")
        async with hosts.cluster.dataplane(*flags) as running:
            status = await running.until(peers=1)
            with hosts.stream() as stream:
                async with stream:
                    await asyncio.sleep(0.5)
                    await running.resync()
            assert not stream.lost
            assert not status.findings
            assert list(status.underlay.addresses) == ["10.255.0.1", "fd00:255::1"]
            four, _, six, _ = hosts.devices()
            assert " local 10.255.0.1 dev eth0 " in four
            assert " local fd00:255::1 dev eth0 " in six


async def test_host_gw_takes_no_public_address_that_another_interface_has(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "host-gw", "ipv4") as hosts:
        netns.ip(*"addr add 10.255.0.1/32 dev lo".split())
        code, said = hosts.cluster.try_to_run("--iface=eth0", "--public-ip=10.255.0.1")
        assert code == 1
        assert "host-gw needs the public IPv4 address 10.255.0.1 on eth0: correct --public-ip" in said
