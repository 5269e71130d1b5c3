"""The VXLAN device is as configured: kept when it fits, made again when it cannot, and nothing old stays."""

import json
import re
from typing import Any, Final

import pytest

from flannelette.lease.v1 import lease_pb2
from flannelette.services.runtime.os.ethtool import checksum_offload, set_checksum_offload
from tests.hosts.dataplane import HOST_GW, VXLAN, Cluster, Running
from tests.patience import PATIENCE, RETIREMENT
from tests.waiting import equals, eventually, lacks

MAC: Final = "06:0c:56:6d:fb:b3"
ROUTE: Final = "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"


def configured(**options: Any) -> str:
    return json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan", **options}})


def index(cluster: Cluster, device: str = "flannel.1") -> int:
    return int(cluster.ip(f"-o link show {device}").split(":")[0])


def mac(cluster: Cluster, device: str = "flannel.1") -> str:
    return cluster.ip(f"-o link show {device}").partition("link/ether ")[2].split()[0]


def device(cluster: Cluster) -> str:
    """Empty while there is none."""
    return cluster.ip("-d link show type vxlan")


def devices(cluster: Cluster) -> list[str]:
    """Every interface that looks like flannel's."""
    return sorted(re.findall(r"^(flannel[^\s@]+)", cluster.ip("-br link"), re.MULTILINE))


async def published_mac(cluster: Cluster) -> str:
    async with cluster.calls() as stub:
        leases = (await stub.ListLeases(lease_pb2.ListLeasesRequest(), timeout=PATIENCE)).leases
    return next(lease.subnets[0].vxlan.mac for lease in leases if lease.node == "n1")


OPTIONS: Final[list[tuple[dict[str, Any], str, bool]]] = [
    ({"Port": 4789}, " dstport 4789 ", False),
    ({"GBP": True}, " gbp ", False),
    ({}, r"\A(?!.* gbp ).* dstport 8472 ", False),
    ({"Learning": True}, " dstport 8472 (?!nolearning)", True),
    ({"MTU": 1400}, " mtu 1350 .* nolearning ", True),
]
"""In turn: the backend's options, what the device shows then, whether it is still the same one."""


async def test_an_option_that_changes_is_carried_out_and_the_mac_stays(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
    async with cluster.dataplane("--audit-interval=600") as running:
        await running.until(peers=1)
        address = mac(cluster)
        for options, shown, is_kept in OPTIONS:
            before = index(cluster)
            cluster.network_file.write_text(configured(**options))
            await eventually(lambda: device(cluster), re.compile(shown, re.DOTALL).search)
            await eventually(cluster.routes, equals([ROUTE]))
            await running.until(peers=1)
            assert (index(cluster) == before) is is_kept
            assert mac(cluster) == address == await published_mac(cluster)


async def test_what_somebody_rewrites_on_the_device_is_put_back(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
    async with cluster.dataplane("--audit-interval=600", "--checksum-offload=off") as running:
        await running.until(peers=1)
        before, address = index(cluster), mac(cluster)
        assert offload(cluster) is False
        assert accepts_ra(cluster) == "0"
        cluster.ip("link set flannel.1 address 02:00:00:00:00:ee")  # as systemd's MACAddressPolicy does
        await eventually(lambda: mac(cluster), equals(address))
        with cluster.namespace.inside():
            set_checksum_offload("flannel.1", on=True)
        await eventually(lambda: offload(cluster), equals(False))
        cluster.run("sysctl -qw net.ipv6.conf.flannel/1.accept_ra=2")
        await running.resync()  # the kernel reports no change of it
        assert accepts_ra(cluster) == "0"
        await running.until(peers=1)
        assert index(cluster) == before
        assert await published_mac(cluster) == address
        assert cluster.routes() == [ROUTE]


def accepts_ra(cluster: Cluster) -> str:
    return cluster.run("sysctl -n net.ipv6.conf.flannel/1.accept_ra")


def offload(cluster: Cluster) -> bool | None:
    with cluster.namespace.inside():
        return checksum_offload("flannel.1")


async def test_the_mac_is_the_same_after_a_reboot(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        address = mac(cluster)
        await running.end()
    cluster.ip("link del flannel.1")
    async with cluster.dataplane() as running:
        await running.until()
        assert mac(cluster) == address == await published_mac(cluster)


async def test_a_device_of_another_vni_goes_also_when_the_change_came_while_the_service_was_down(
    cluster: Cluster,
) -> None:
    peer = await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        await running.end()
    cluster.ip("link add flannel.9 type vxlan id 9 local 10.99.0.11 dev eth0 dstport 4789 nolearning")
    cluster.ip("link add flannel.10 type bridge")
    cluster.network_file.write_text(configured(VNI=7))
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert "flannel.1" in devices(cluster), "n2 is reached by it"
        await cluster.leave("n2", peer)
        await eventually(lambda: devices(cluster), lacks("flannel.1"), RETIREMENT)
        assert devices(cluster) == ["flannel.10", "flannel.7", "flannel.9"], "what is not marked as ours stays"


async def test_the_device_goes_when_the_backend_became_host_gw_while_the_service_was_down(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        await running.end()
    cluster.network_file.write_text(HOST_GW)
    async with cluster.dataplane() as running:
        await running.until(backend="host-gw")
        await eventually(lambda: devices(cluster), equals([]))


@pytest.mark.parametrize("is_running", [True, False])
async def test_the_address_of_an_earlier_network_goes(cluster: Cluster, is_running: bool) -> None:
    other = VXLAN.replace("10.5.", "10.6.")
    async with cluster.dataplane() as running:
        await running.until()
        cluster.ip("addr add 192.0.2.1/32 dev flannel.1")
        if is_running:
            cluster.network_file.write_text(other)
            await cluster.renumber(running)
            await moved(cluster, running)
            return
        await running.end()
    cluster.network_file.write_text(other)
    await cluster.pending()  # what a dataplane hears later than its first leases moves no node by itself
    async with cluster.dataplane() as running:
        await moved(cluster, running)


async def moved(cluster: Cluster, running: Running) -> None:
    def addresses() -> list[str]:
        shown = cluster.ip("-4 -o addr show flannel.1")
        return sorted(re.findall(r"inet (\S+)", shown))

    await eventually(
        running.status,
        lambda status: status.lease.name.startswith("10.6.") and any(a.startswith("10.6.") for a in addresses()),
    )
    own = (await running.until()).lease.subnets[0].split("/")[0]
    await eventually(addresses, equals([f"{own}/32", "192.0.2.1/32"]))
