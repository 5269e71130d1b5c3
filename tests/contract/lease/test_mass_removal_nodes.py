"""Defect 1 of flannel v0.28 with nodes that live: what was deleted is taken again, what was released goes at once."""

import asyncio
import json
from pathlib import Path

from flannelette.lease.v1 import lease_pb2 as pb
from tests.examples.leases import make_request
from tests.flannel.network import NAMES, Client, Network, lease_to_ask_for, value, watching
from tests.services.follower import Node
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import contains, eventually


async def test_a_subnet_whose_lease_is_held_goes_to_its_own_node_only(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        network.delete("subnets/", "--prefix")
        await client.until_held(20)
        new = await client.stub.AcquireLease(lease_to_ask_for("new", "10.99.9.9", "10.5.3.0/24"))
        assert new.lease.name not in NAMES
        own_address = json.loads(value(3))["PublicIP"]
        own = await client.stub.AcquireLease(lease_to_ask_for("n3", own_address, "10.5.3.0/24"))
        assert own.lease.name == "10.5.3.0-24"
        assert client.lost == set()


async def test_nodes_whose_leases_were_deleted_take_them_again_and_no_table_ever_lacks_one(
    tmp_path: Path, network: Network
) -> None:
    network.delete("subnets/", "--prefix")
    store = ("--store=etcd", f"--etcd-endpoints={network.etcd.endpoint}", f"--etcd-prefix={network.prefix}")
    with ServiceProcess(tmp_path, "--central", *store, "--guard-seconds=4") as process:
        async with stub_of(process.address) as stub, asyncio.TaskGroup() as group:
            nodes = [
                Node(process.address, make_request(f"node{number}", f"172.16.1.{number}")) for number in range(1, 13)
            ]
            client = Client(stub)
            tasks = [group.create_task(job()) for job in (client.follow, *(node.run for node in nodes))]
            await client.until_known(12)
            before = network.leases
            network.delete("subnets/", "--prefix")
            await eventually(
                lambda: (tmp_path / "lease.log").read_text(), contains("vanished from the store at once")
            )
            await client.until_held(0)
            assert network.leases == before
            assert "are carried out" not in (tmp_path / "lease.log").read_text()
            assert (client.lost, len(client.table.leases)) == (set(), 12)
            for task in tasks:
                task.cancel()


async def test_what_somebody_asked_a_lease_service_to_remove_is_gone_at_once_from_the_tables_of_all(
    tmp_path: Path, network: Network
) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    network.delete("subnets/", "--prefix")
    network.put("subnets/10.5.250.0-24", value(250))
    async with watching(here, network, known=1) as client, watching(there, network, known=1) as other:
        requests = [(f"n{number}", f"10.99.1.{number}") for number in range(1, 31)]
        held = await asyncio.gather(
            *(client.stub.AcquireLease(lease_to_ask_for(node, address)) for node, address in requests)
        )
        for number in range(200, 220):
            await client.stub.ReserveSubnet(pb.ReserveSubnetRequest(cidrs=[f"10.5.{number}.0/24"]))
        await other.until_known(51)
        releases = [pb.ReleaseLeaseRequest(node=answer.lease.node) for answer in held[:15]]
        await asyncio.gather(*map(client.stub.ReleaseLease, releases))
        await asyncio.gather(
            *(client.stub.ReleaseSubnet(pb.ReleaseSubnetRequest(name=f"10.5.{n}.0-24")) for n in range(200, 220))
        )
        await other.stub.ReleaseSubnet(pb.ReleaseSubnetRequest(name="10.5.250.0-24"))
        for each in (client, other):
            await each.until_known(15)
        network.delete("subnets/", "--prefix")
        for each in (client, other):
            assert len((await each.until_held(15)).held_removals) == 15
            assert each.table.leases.keys() == {answer.lease.name for answer in held[15:]}
