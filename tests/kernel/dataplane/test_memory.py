"""What a dataplane remembers is used only where it may be: its file, its directory, its node, and what is newer."""

import asyncio
from dataclasses import replace

import pytest

from tests.examples.state_files import encode
from tests.hosts.dataplane import Cluster
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.reboots import MAC, OTHER_MAC, memory, reboot, remembering, restarted, state_file
from tests.kernel.dataplane.test_life import route
from tests.waiting import contains, eventually


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
        await eventually(lambda: running.log, contains("cached leases are in force"))
        await running.resync()
        assert (cluster.routes(), cluster.neighbours()) == kept
        cluster.leases = cluster.start_leases()
        await running.until(peers=1)
        assert cluster.routes() == [route(name)]
        assert cluster.neighbours() == [f"{subnet} lladdr {MAC} PERMANENT"]


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
        assert "cached leases are in force" not in running.log


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
    state_file(cluster).write_bytes(
        b"".join(encode("dataplane", "n1", gone, found.previous_subnets, found.table_records))
    )
    cluster.leases.terminate()
    reboot(cluster, make_netns)
    async with restarted(cluster) as running:
        status = await remembering(running, peers=1)
        assert not status.HasField("lease")
        assert not (cluster.directory / "subnet.env").exists()
        assert cluster.routes() == [route(name)]
        assert "inet 10.5." not in cluster.ip("addr show flannel.1")
        assert "the lease has expired" in running.log
        cluster.leases = cluster.start_leases()  # which still has it
        status = await running.until(peers=1)
        assert status.lease.subnets == before.lease.subnets
        assert status.devices[0].mac == before.devices[0].mac


@pytest.mark.parametrize("damage", ["damaged", "foreign", "of another node"])
async def test_a_file_that_cannot_be_used_is_refused_in_one_line_and_kept(cluster: Cluster, damage: str) -> None:
    async with cluster.dataplane() as running:
        await cluster.join("n2", "10.99.0.12", MAC)
        await running.until(peers=1)
        await running.end()
    path = state_file(cluster)
    data = path.read_bytes()
    bad = {
        "damaged": bytes(byte ^ 1 for byte in data),
        "foreign": b"root:x:0:0:root:/root:/bin/bash\n",
        "of another node": b"".join(encode("dataplane", "n7", None, (), memory(cluster).table_records)),
    }[damage]
    path.write_bytes(bad)
    cluster.leases.terminate()
    async with cluster.dataplane() as running:
        # The lease service is known to be away: what is cached would be used by now.
        await eventually(running.reasons, contains("is flannelette-lease running"))
        await eventually(lambda: running.log, contains("the state file is not used"))
        assert "cached leases are in force" not in running.log
        assert path.read_bytes() == bad
        cluster.leases = cluster.start_leases()
        await running.until(peers=1)
        await running.end()
        assert running.log.count("the state file is not used") == 1
    assert path.with_name("dataplane.state.refused").read_bytes() == bad
    assert len(memory(cluster).table().leases) == 2


async def test_a_directory_that_cannot_be_used_costs_only_the_memory(cluster: Cluster) -> None:
    async with cluster.dataplane("--state-dir=/proc/no") as running:
        await running.until()
        assert running.log.count("no state is kept for a reboot") == 1
        await running.end()
    async with cluster.dataplane("--state-dir=") as running:
        await running.until()
        assert running.log.count("no state is kept for a reboot") == 1
        await running.end()
    assert not state_file(cluster).exists()


async def test_two_dataplanes_never_share_what_they_remember(cluster: Cluster, make_netns: NamespaceMaker) -> None:
    async with cluster.dataplane() as running:
        await running.until()
        first, home = cluster.namespace, cluster.directory / "other"
        home.mkdir()
        reboot(cluster, make_netns)
        async with restarted(cluster, f"--socket-dir={home}", f"--lease-address={cluster.leases.address}") as second:
            await eventually(lambda: second.log, contains("another dataplane keeps its state in"))
        cluster.namespace = first


async def test_a_lease_that_the_disk_has_damaged_is_refused_by_its_name_and_the_other_peers_are_reached(
    cluster: Cluster, make_netns: NamespaceMaker
) -> None:
    async with cluster.dataplane() as running:
        damaged = await cluster.join("n2", "10.99.0.12", MAC)
        kept = await cluster.join("n3", "10.99.0.13", OTHER_MAC)
        await running.until(peers=2)
        await running.end()
    data = bytearray(state_file(cluster).read_bytes())
    data[data.index(b"lease/" + damaged.encode()) + 50] ^= 4
    state_file(cluster).write_bytes(data)
    cluster.leases.terminate()
    reboot(cluster, make_netns)
    async with restarted(cluster) as running:
        await remembering(running, peers=1)
        assert cluster.routes() == [route(kept)]
        assert f"lease/{damaged} (line " in running.log
        cluster.leases = cluster.start_leases()
        await running.until(peers=2)
        await running.end()
    assert state_file(cluster).with_name("dataplane.state.refused").read_bytes() == data
    assert memory(cluster).table().leases.keys() >= {damaged, kept}
