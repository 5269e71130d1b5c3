"""IPv6 beside IPv4 and alone, for both backends: the same objects, the same healing, the MTU of an IPv6 underlay."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Final

import pytest

from flannelette.lease.v1 import lease_pb2
from tests.hosts.dataplane import Cluster, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE
from tests.waiting import contains, equals, eventually, eventually_exists

IPV6_ONLY: Final = '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"%s"}}'
DUAL: Final = '{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"%s"}}'
MAC, MAC_V6 = "06:0c:56:6d:fb:b3", "06:0c:56:6d:fb:b6"
ROUTE: Final = "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"
ROUTE_V6: Final = "fd00:10:5:35::/64 via fd00:10:5:35:: dev flannel-v6.1 proto 77 metric 54 onlink pref medium"


_MTU_DISCOVER: Final = {4: (socket.IPPROTO_IP, 10), 6: (socket.IPPROTO_IPV6, 23)}  # linux/in.h, linux/in6.h
_PMTUDISC_DO: Final = 2


@contextmanager
def with_ipv6(netns: NetworkNamespace, network: str) -> Iterator[Cluster]:
    """A cluster on an underlay of both families."""
    with cluster_in(netns, network) as cluster:
        cluster.ip("addr add fd00:99::11/64 dev eth0 nodad")
        cluster.ip("route add default via fd00:99::1 dev eth0")
        yield cluster


def routes_v6(cluster: Cluster) -> list[str]:
    lines = cluster.ip("-6 route show root fd00:10:5::/48").splitlines()
    return sorted(" ".join(line.split()) for line in lines if "proto kernel" not in line)


async def join(cluster: Cluster, node: str, *subnets: tuple[str, str, str]) -> lease_pb2.Lease:
    """A node with these subnets, public addresses and MACs."""
    parts = []
    for cidr, public, mac in subnets:
        part = lease_pb2.Subnet(cidr=cidr, public_address=public)
        if mac:
            part.vxlan.vni, part.vxlan.mac = 1, mac
        parts.append(part)
    kind = "vxlan" if subnets[0][2] else "host-gw"
    request = lease_pb2.AcquireLeaseRequest(node=node, subnets=parts, backend_type=kind)
    async with cluster.calls() as stub:
        return (await stub.AcquireLease(request, timeout=PATIENCE)).lease


def objects(cluster: Cluster, device: str) -> tuple[list[str], list[str]]:
    """Permanent neighbours and forwarding entries."""
    shown = cluster.ip(f"neigh show dev {device} nud permanent").splitlines()
    return [" ".join(line.split()) for line in shown], cluster.fdb(device)


def seen_v6(cluster: Cluster, own: str) -> tuple[object, ...]:
    """What the peer needs, and the own address."""
    if "flannel-v6.1" not in cluster.ip("-br link"):
        return ()
    address = f"inet6 {own}/128 "
    return routes_v6(cluster), objects(cluster, "flannel-v6.1"), address in cluster.ip("addr show flannel-v6.1")


def whole_v6(own: str) -> tuple[object, ...]:
    """All of it."""
    neighbours, entries = [f"fd00:10:5:35:: lladdr {MAC_V6} PERMANENT"], [f"{MAC_V6} dst fd00:99::12 self permanent"]
    return [ROUTE_V6], (neighbours, entries), True


def is_there(cluster: Cluster, device: str) -> bool:
    return device in cluster.ip("-br link")


async def until_seen(expected: object, seen: Callable[[], object]) -> None:
    await eventually(seen, equals(expected))


async def test_a_device_that_goes_is_made_again_and_that_of_the_other_family_stays(netns: NetworkNamespace) -> None:
    with with_ipv6(netns, DUAL % "vxlan") as cluster:
        async with cluster.dataplane("--audit-interval=600") as running:
            await running.until()
            for name, other in (("flannel-v6.1", "flannel.1"), ("flannel.1", "flannel-v6.1")):
                index = cluster.ip(f"-o link show {other}").split(":")[0]
                cluster.ip(f"link del {name}")
                await until_seen(True, partial(is_there, cluster, name))
                await running.until()
                assert cluster.ip(f"-o link show {other}").split(":")[0] == index


async def test_both_families_are_carried_by_vxlan_each_on_its_own_device(netns: NetworkNamespace) -> None:
    with with_ipv6(netns, DUAL % "vxlan") as cluster:
        async with cluster.dataplane("--audit-interval=600") as running:
            status = await running.until()
            assert [subnet.split("/")[1] for subnet in status.lease.subnets] == ["24", "64"]
            await join(
                cluster, "n2", ("10.5.53.0/24", "10.99.0.12", MAC), ("fd00:10:5:35::/64", "fd00:99::12", MAC_V6)
            )
            await running.until(peers=1)
            assert cluster.routes() == [ROUTE]
            assert routes_v6(cluster) == [ROUTE_V6]
            assert objects(cluster, "flannel.1") == (
                [f"10.5.53.0 lladdr {MAC} PERMANENT"],
                [f"{MAC} dst 10.99.0.12 self permanent"],
            )
            assert objects(cluster, "flannel-v6.1") == (
                [f"fd00:10:5:35:: lladdr {MAC_V6} PERMANENT"],
                [f"{MAC_V6} dst fd00:99::12 self permanent"],
            )
            own = [subnet.split("/")[0] for subnet in status.lease.subnets]
            assert f"inet {own[0]}/32 " in cluster.ip("addr show flannel.1")
            assert f"inet6 {own[1]}/128 " in cluster.ip("addr show flannel-v6.1")
            assert " mtu 1450 " in cluster.ip("link show flannel.1")
            assert " mtu 1430 " in cluster.ip("link show flannel-v6.1")
            text = (cluster.directory / "subnet.env").read_text()
            assert text == (
                f"FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET={own[0][:-1]}1/24\n"
                f"FLANNEL_IPV6_NETWORK=fd00:10:5::/48\nFLANNEL_IPV6_SUBNET={own[1]}1/64\n"
                "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
            )
            for fault in (
                "ip link set flannel-v6.1 down",
                "ip link del flannel-v6.1",
                "ip -6 route flush proto 77",
                "ip neigh flush dev flannel-v6.1 nud permanent",
                f"bridge fdb del {MAC_V6} dev flannel-v6.1 dst fd00:99::12",
                f"ip addr del {own[1]}/128 dev flannel-v6.1",
            ):
                cluster.run(fault)
                await until_seen(whole_v6(own[1]), lambda: seen_v6(cluster, own[1]))
            await running.until(peers=1)
            assert cluster.routes() == [ROUTE]


async def test_a_device_that_is_deleted_comes_back_complete_in_each_family(netns: NetworkNamespace) -> None:
    """A regression test of defect 3 of flannel v0.28."""
    with with_ipv6(netns, DUAL % "vxlan") as cluster:
        n2 = (("10.5.53.0/24", "10.99.0.12", MAC), ("fd00:10:5:35::/64", "fd00:99::12", MAC_V6))
        await join(cluster, "n2", *n2)
        async with cluster.dataplane("--audit-interval=600") as running:
            status = await running.until(peers=1)
            macs = [device.mac for device in status.devices]
            for device in status.devices:
                cluster.ip(f"link del {device.name}")
            own = status.lease.subnets[1].split("/")[0]
            await until_seen(whole_v6(own), lambda: seen_v6(cluster, own))
            await until_seen([ROUTE], cluster.routes)
            assert objects(cluster, "flannel.1")[1] == [f"{MAC} dst 10.99.0.12 self permanent"]
            status = await running.until(peers=1)
            assert [device.mac for device in status.devices] == macs
            async with cluster.calls() as stub:
                leases = (await stub.ListLeases(lease_pb2.ListLeasesRequest(), timeout=PATIENCE)).leases
            (ours,) = (lease for lease in leases if lease.node == "n1")
            assert [subnet.vxlan.mac for subnet in ours.subnets] == macs


@pytest.mark.parametrize("backend", ["vxlan", "host-gw"])
async def test_ipv6_alone_is_carried(netns: NetworkNamespace, backend: str) -> None:
    with with_ipv6(netns, IPV6_ONLY % backend) as cluster:
        mac = MAC_V6 if backend == "vxlan" else ""
        async with cluster.dataplane() as running:
            status = await running.until()
            (own,) = status.lease.subnets
            assert own.endswith("::/64")
            lease = await join(cluster, "n2", ("fd00:10:5:35::/64", "fd00:99::12", mac))
            assert lease.name == "fd00:10:5:35::-64"
            await running.until(peers=1)
            via = "via fd00:99::12 dev eth0 proto 77 metric 54 pref medium"
            assert routes_v6(cluster) == ([ROUTE_V6] if mac else [f"fd00:10:5:35::/64 {via}"])
            assert ("flannel-v6.1" in cluster.ip("-br link")) is bool(mac)
            assert "flannel.1" not in cluster.ip("-br link")
            mtu = 1430 if mac else 1500
            assert (cluster.directory / "subnet.env").read_text() == (
                f"FLANNEL_IPV6_NETWORK=fd00:10:5::/48\nFLANNEL_IPV6_SUBNET={own.replace('::/', '::1/')}\n"
                f"FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=false\n"
            )
            assert await running.end() == 0
        async with cluster.dataplane() as running:
            again = await running.until(peers=1)
            assert (list(again.lease.subnets), again.last_resync_changes) == ([own], 0)


@pytest.mark.parametrize("backend", ["vxlan", "host-gw"])
async def test_pods_of_two_hosts_reach_each_other_in_every_family(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str
) -> None:
    other = make_netns()
    with with_ipv6(netns, DUAL % backend) as cluster:
        cluster.ip(f"link set far netns {other.name}")
        for words in (
            "link set far name eth0",
            "link set eth0 up",
            "addr add 10.99.0.12/16 dev eth0",
            "addr add fd00:99::12/64 dev eth0 nodad",
            "route add default via 10.99.0.1",
            "route add default via fd00:99::1 dev eth0",
        ):
            other.ip(*words.split())
        home = cluster.directory / "n2"
        home.mkdir()
        cluster.namespace, first = other, cluster.namespace
        more = (
            f"--socket-dir={home}",
            f"--subnet-file={home}/subnet.env",
            f"--state-dir={home}/state",
            f"--lease-address={cluster.leases.address}",
        )
        async with cluster.dataplane("--node=n2", *more) as there:
            cluster.namespace = first
            async with cluster.dataplane() as running:
                await running.until(peers=1)
                await there.until(peers=1)
                for namespace, file in ((netns, cluster.directory / "subnet.env"), (other, home / "subnet.env")):
                    await eventually_exists(file)
                    await become_a_pod(namespace, file)
                targets = gateways(home / "subnet.env")
                assert [ip_interface(target).version for target in targets] == [4, 6]
                for target in targets:
                    sources = gateways(cluster.directory / "subnet.env")
                    source = next(each for each in sources if (":" in each) == (":" in target))
                    with socket_in(netns, ip(source)) as ours, socket_in(other, ip(target)) as theirs:
                        over_ipv6 = 20 if backend == "vxlan" else 0  # an outer header that is so much longer
                        room = mtu_of(home / "subnet.env") - (48 + over_ipv6 if ":" in target else 28)
                        packet = b"x" * room
                        ours.sendto(packet, theirs.getsockname())
                        assert theirs.recvfrom(len(packet) + 1) == (packet, ours.getsockname())
                        theirs.sendto(packet, ours.getsockname())
                        assert ours.recvfrom(len(packet) + 1) == (packet, theirs.getsockname())
                        with pytest.raises(OSError, match="Message too long"):
                            ours.sendto(packet + b"x", theirs.getsockname())


def socket_in(namespace: NetworkNamespace, address: str) -> socket.socket:
    """One for UDP, at this address, whose packets are never cut in pieces."""
    version = ip_address(address).version
    with namespace.inside():
        made = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM)
    level, option = _MTU_DISCOVER[version]
    made.setsockopt(level, option, _PMTUDISC_DO)
    made.settimeout(PATIENCE)
    made.bind((address, 0))
    return made


def gateways(subnet_file: Path) -> list[str]:
    """The pods' gateways, which stand for the pods."""
    lines = [line.split("=") for line in subnet_file.read_text().splitlines()]
    return [value for name, value in lines if name in ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")]


def mtu_of(subnet_file: Path) -> int:
    return int(subnet_file.read_text().partition("FLANNEL_MTU=")[2].split()[0])


def ip(gateway: str) -> str:
    return gateway.split("/")[0]


async def become_a_pod(namespace: NetworkNamespace, subnet_file: Path) -> None:
    """The kernel gives an IPv6 address its local route later, in a work queue: until then packets to it are lost."""
    namespace.ip("link", "add", "cni0", "type", "bridge")
    for gateway in gateways(subnet_file):
        namespace.ip("addr", "add", gateway, "dev", "cni0", *(["nodad"] if ":" in gateway else []))
    namespace.ip("link", "set", "cni0", "up")
    for gateway in gateways(subnet_file):
        await eventually(partial(local_routes, namespace, ip(gateway)), contains(f"local {ip(gateway)} "))


def local_routes(namespace: NetworkNamespace, address: str) -> str:
    """Those of the bridge, in the family of the address."""
    version = ip_address(address).version
    return namespace.ip(*f"-{version} route show table local dev cni0".split())


async def test_an_address_that_is_still_being_checked_is_waited_for_and_then_followed(
    netns: NetworkNamespace,
) -> None:
    with with_ipv6(netns, IPV6_ONLY % "vxlan") as cluster:
        async with cluster.dataplane("--audit-interval=600") as running:
            await running.until()
            cluster.run("sysctl -qw net.ipv6.conf.eth0.accept_dad=1")
            cluster.ip("addr add fd00:99::12/64 dev eth0")
            cluster.ip("addr del fd00:99::11/64 dev eth0")
            await running.until(ready=False)
            await join(cluster, "n3", ("fd00:10:5:36::/64", "fd00:99::13", MAC))
            await until_seen(True, lambda: any("fd00:10:5:36::/64" in line for line in routes_v6(cluster)))
            await eventually(running.status, lambda status: list(status.underlay.addresses) == ["fd00:99::12"])
            await running.until(peers=1)
            assert " local fd00:99::12 " in cluster.ip("-d link show flannel-v6.1")


async def findings_of(running: Running) -> list[tuple[str, bool, str]]:
    return [(each.check, each.broken, each.cause) for each in (await running.status()).findings]


@pytest.mark.parametrize("kind", ["vxlan", "host-gw"])
async def test_without_an_ipv6_address_ipv4_runs_and_ipv6_comes_with_the_address(
    netns: NetworkNamespace, kind: str
) -> None:
    macs = (MAC, MAC_V6) if kind == "vxlan" else ("", "")
    with with_ipv6(netns, DUAL % kind) as cluster:
        subnets = (("10.5.53.0/24", "10.99.0.12", macs[0]), ("fd00:10:5:35::/64", "fd00:99::12", macs[1]))
        await join(cluster, "n2", *subnets)
        cluster.ip("addr del fd00:99::11/64 dev eth0")
        async with cluster.dataplane() as running:
            status = await running.until(peers=1)
            assert [ip_interface(each).version for each in status.lease.subnets] == [4]
            first = status.lease.subnets[0]
            assert await findings_of(running) == [
                (
                    "underlay-family",
                    False,
                    "Interface eth0 (has the default route) has no IPv6 address but link-local ones, with which no "
                    "peer can reach it: give it a global or unique local one, or choose another with --iface. IPv6 "
                    "comes by itself then.",
                )
            ]
            assert "10.5.53.0/24" in cluster.ip("route show")
            assert routes_v6(cluster) == []
            assert "FLANNEL_IPV6" not in (cluster.directory / "subnet.env").read_text()
            cluster.ip("addr add fd00:99::11/64 dev eth0 nodad")
            status = await eventually(
                running.status, lambda status: len(status.lease.subnets) >= 2 and routes_v6(cluster)
            )
            assert status.lease.subnets[0] == first
            assert not await findings_of(running)
            await eventually((cluster.directory / "subnet.env").read_text, contains("FLANNEL_IPV6_SUBNET"))
            both = list(status.lease.subnets)
        cluster.ip("addr del fd00:99::11/64 dev eth0")
        async with cluster.dataplane() as running:
            assert list((await running.until(peers=1)).lease.subnets) == both, "a restart keeps the subnet of IPv6"


async def test_without_an_ipv4_address_nothing_starts(netns: NetworkNamespace) -> None:
    with with_ipv6(netns, DUAL % "vxlan") as cluster:
        cluster.ip("addr flush dev eth0 scope global")
        cluster.ip("addr add fd00:99::11/64 dev eth0 nodad")
        cluster.ip("-6 route replace default via fd00:99::1 dev eth0")
        code, output = await asyncio.to_thread(cluster.try_to_run)
    assert code == 1
    assert "has no usable IPv4 address" in output
