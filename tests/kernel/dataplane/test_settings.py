"""What the dataplane is told: configurations that change under it, ones it cannot carry, settings that cannot be."""

import asyncio
from pathlib import Path

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import HOST_GW, VXLAN, Cluster, cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import RETIREMENT
from tests.waiting import contains, equals, eventually, lacks

MAC = "06:0c:56:6d:fb:b3"
VNI_7 = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":7}}'
PIPE = '{"Network":"10.5.0.0/16","Backend":{"Type":"extension","SubnetAddCommand":"a | b"}}'
"""The dataplane refuses it, the lease service does not."""
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin")


async def test_another_vni_makes_a_new_device_and_keeps_the_old_one_while_a_peer_needs_it(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        cluster.network_file.write_text(VNI_7)
        await eventually(lambda: cluster.ip("-br link"), contains("flannel.7"))
        peer = await cluster.join(
            "n2", "10.99.0.12", MAC, "10.5.53.0/24"
        )  # says VNI 1: it has not heard of the change
        status = await running.until(peers=1)
        assert [device.name for device in status.devices] == ["flannel.7", "flannel.1"]
        assert [list(each.peers) for each in status.earlier_backends] == [["n2"]]
        assert f"inet {status.lease.subnets[0].split('/')[0]}/32" in cluster.ip("addr show flannel.7")
        await cluster.leave("n2", peer)
        await until_gone(cluster, "flannel.1")
        status = await running.until()
        assert [device.name for device in status.devices] == ["flannel.7"]


async def until_gone(cluster: Cluster, device: str) -> None:
    """Returns when the device of an earlier backend is gone: 20 s after the last lease that says it."""
    await eventually(lambda: cluster.ip("-br link"), lacks(device), RETIREMENT)


async def test_from_vxlan_to_host_gw_and_back(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
        await running.until(peers=1)
        cluster.network_file.write_text(HOST_GW)
        await running.until(peers=1, backend="host-gw")
        assert "via 10.5.53.0 dev flannel.1" in cluster.routes()[0]
        await cluster.join("n2", "10.99.0.12")
        await until_gone(cluster, "flannel.1")
        await running.until(peers=1, backend="host-gw")
        assert cluster.routes() == ["10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334"]
        assert "FLANNEL_MTU=1500" in (cluster.directory / "subnet.env").read_text()
        cluster.network_file.write_text(VXLAN)
        await running.until(backend="vxlan")
        await cluster.join("n2", "10.99.0.12", MAC)
        tunnelled = ["10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"]
        await eventually(cluster.routes, equals(tunnelled))


async def test_another_network_gives_another_subnet(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        cluster.network_file.write_text('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')
        await cluster.renumber(running)
        await eventually(running.status, lambda status: status.lease.name.startswith("10.6."))
        status = await running.until()
        own = status.lease.subnets[0].split("/")[0]
        text = (cluster.directory / "subnet.env").read_text()
        assert text.startswith(f"FLANNEL_NETWORK=10.6.0.0/16\nFLANNEL_SUBNET={own[:-1]}1/24\n")
        assert f"inet {own}/32" in cluster.ip("addr show flannel.1")
        assert running.log.count("lease lost") == 1
        cluster.network_file.write_text(VXLAN)  # the change was a mistake
        await cluster.renumber(running)
        await eventually(running.status, lambda status: status.lease.name.startswith("10.5."))
        assert (await running.until()).lease.name == "10.5.27.0-24", "its own subnet, as before"


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (PIPE, "SubnetAddCommand has |"),
        ('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":16777216}}', "VNI in "),
        ('{"Network":"10.5.0.0/16","Backend":{"Type":"nonsense"}}', "Type 'nonsense' of Backend in "),
        ('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","VNI":"x"}}', "VNI in "),
        ("{", "is not valid JSON"),
    ],
)
async def test_a_network_it_cannot_carry_is_a_reason_and_a_better_one_is_taken(
    cluster: Cluster, network: str, reason: str
) -> None:
    cluster.network_file.write_text(network)
    async with cluster.dataplane() as running:
        status = await eventually(running.status, lambda status: reason in " ".join(status.reasons))
        assert not status.ready
        assert "flannel" not in cluster.ip("-br link")
        await asyncio.sleep(1)
        assert running.log.count("the network configuration cannot be applied") <= 1
        assert running.log.count("which means") <= 1
        cluster.network_file.write_text(VXLAN)
        await running.until()


async def test_a_network_it_cannot_carry_leaves_the_last_good_one_in_force(cluster: Cluster) -> None:
    async with cluster.dataplane() as running:
        await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
        await running.until(peers=1)
        cluster.network_file.write_text(PIPE)
        status = await running.until(ready=False, because="SubnetAddCommand has |")
        assert status.peers.programmed == 1
        await cluster.join("n3", "10.99.0.13", "06:0c:56:6d:fb:b4", "10.5.54.0/24")
        await running.until(ready=False, peers=2)
        cluster.network_file.write_text(VXLAN)
        await running.until(peers=2)


async def test_a_second_dataplane_in_the_namespace_ends_with_one_clear_line(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        done = cluster.try_to_run(f"--listen=unix:{cluster.directory}/other.sock")
        assert done == (
            1,
            "flannelette-dataplane: another dataplane runs in this network namespace: stop it first: two would undo "
            "each other's changes\n",
        )
        assert (await running.status()).ready


@pytest.mark.parametrize(
    ("around", "arguments", "code", "line"),
    [
        (WITHOUT_RIGHTS, (), 1, "needs the capability NET_ADMIN"),
        ((), ("--iface=eth7",), 1, "no interface matches --iface eth7; there is "),
        ((), ("--iface-regex=^192",), 1, "no interface matches --iface-regex ^192; there is "),
        ((), ("--iface=far",), 1, "interface far (--iface far) has no usable IPv4 address"),
        ((), ("--public-ip=10.99.0.77",), 1, "no interface has the address 10.99.0.77 of --public-ip"),
        ((), ("--iface-can-reach=203.0.113.9", "--iface=x"), 0, ""),
        ((), ("--public-ip=here",), 2, "--public-ip 'here' is not an IP address"),
        ((), ("--public-ip=fd00::1",), 2, "--public-ip 'fd00::1' is not an IPv4 address"),
        ((), ("--iface-regex=(",), 2, "--iface-regex '(' is not an RE2 regular expression"),
        ((), ("--subnet-lease-renew-margin=1440",), 2, "use 1 to 1439 minutes"),
        ((), ("--route-protocol=2",), 2, "use 5 to 255"),
        ((), ("--audit-interval=nan",), 2, "use a number of seconds above 0"),
    ],
)
async def test_what_cannot_work_ends_with_one_clear_line(
    cluster: Cluster, around: tuple[str, ...], arguments: tuple[str, ...], code: int, line: str
) -> None:
    if code == 0:
        async with cluster.dataplane(*arguments) as running:
            status = await running.until()
            assert status.underlay.reason == "reaches 203.0.113.9 (--iface-can-reach)"
        return
    exit_code, output = await asyncio.to_thread(cluster.try_to_run, *arguments, around=around)
    assert exit_code == code
    said = [each for each in output.splitlines() if each.startswith("flannelette-dataplane: ")]
    assert len(said) == 1
    assert line in said[0]
    assert "Traceback" not in output
    assert "flannel." not in cluster.ip("-br link")


async def test_without_rights_it_ends_before_it_waits_for_anything(cluster: Cluster) -> None:
    cluster.leases.terminate()
    code, output = await asyncio.to_thread(cluster.try_to_run, around=WITHOUT_RIGHTS)
    assert code == 1
    assert len(output.splitlines()) == 1


async def test_a_dry_run_is_the_commands_that_do_it(cluster: Cluster) -> None:
    async with cluster.dataplane("--audit-interval=600") as running:
        await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
        await cluster.join("n3", "10.99.0.13", "06:0c:56:6d:fb:b4", "10.5.54.0/24")
        await running.until(peers=2)
        planned = await running.stub.TeardownKernel(pb.TeardownKernelRequest(dry_run=True))
        await running.until(peers=2)
        done = await running.stub.TeardownKernel(pb.TeardownKernelRequest())
        assert planned.commands == done.commands == ["ip link del flannel.1"]
        assert cluster.routes() == []
        assert "flannel" not in cluster.ip("-br link")
        await running.until(ready=False, because="torn down by an operator")
        await cluster.join("n4", "10.99.0.14", "06:0c:56:6d:fb:b5", "10.5.55.0/24")
        repair = await eventually(
            lambda: running.resync(dry_run=True), lambda plan: "10.5.55.0/24" in str(plan.commands)
        )
        assert cluster.routes() == []
        for command in repair.commands:
            cluster.run(command)
        # The new device accepts router advertisements until it is told not to, which nobody could foresee.
        rest = list((await running.resync(dry_run=True)).commands)
        assert set(rest) <= {"sysctl -w net/ipv6/conf/flannel.1/accept_ra=0"}
        assert len(cluster.routes()) == 3
        response = await running.resync()
        assert list(response.commands) == rest
        await running.until(peers=3)


async def test_a_host_gw_teardown_removes_our_routes_and_a_restart_ends_it(netns: NetworkNamespace) -> None:
    with cluster_in(netns, HOST_GW) as cluster:
        cluster.ip("route add 10.5.77.0/24 via 10.99.0.77 proto static")
        async with cluster.dataplane() as running:
            await cluster.join("n2", "10.99.0.12", subnet="10.5.53.0/24")
            await running.until(peers=1)
            done = await running.stub.TeardownKernel(pb.TeardownKernelRequest())
            assert list(done.commands) == ["ip route del 10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334"]
            assert cluster.routes() == ["10.5.77.0/24 via 10.99.0.77 dev eth0 proto static"]
            await running.end()
        async with cluster.dataplane() as running:
            await running.until(peers=1)
