"""Defect 1 of flannel v0.28, against a real etcd: one bad key, or a listing that lacks them, removed every peer."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc

from services.core.table import Table
from services.dataplane.holder import Holder
from services.dataplane.journal import Journal
from services.lease.stores.etcd import EtcdSettings
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.members import Timing
from services.lease.stores.etcd.records import Put, Transaction
from services.runtime.feed import Feed, LeaseConnection
from tests.etcd import EtcdMaker, EtcdServer
from tests.lease_examples import SMALL_JSON, make_request
from tests.lease_service import ServiceProcess, eventually, next_step, stub_of

NAMES = [f"10.5.{number}.0-24" for number in range(1, 21)]
LONG = 600.0
"""Seconds to a second listing that no test waits for."""


def value(number: int) -> str:
    """What a flanneld would write."""
    data = f'{{"VNI":1,"VtepMAC":"02:00:00:00:00:{number:02x}"}}'
    return f'{{"PublicIP":"172.16.0.{number}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{data}}}'


def lease_to_ask_for(node: str, address: str, previous: str = "") -> pb.AcquireLeaseRequest:
    subnet = pb.Subnet(cidr=previous, public_address=address)
    return pb.AcquireLeaseRequest(node=node, backend_type="host-gw", subnets=[subnet])


class Network:
    """A network of flannelds in an etcd: nobody here renews or takes anything again."""

    def __init__(self, etcd: EtcdServer) -> None:
        self.etcd = etcd
        self.prefix = f"/{uuid.uuid4().hex}"

    async def fill(self) -> None:
        texts = {"config": SMALL_JSON, **{f"subnets/{name}": value(n) for n, name in enumerate(NAMES, start=1)}}
        puts = tuple(Put(f"{self.prefix}/{key}".encode(), text.encode()) for key, text in texts.items())
        client = EtcdClient(EtcdSettings((self.etcd.endpoint,), self.prefix), Timing(), "test")
        await client.transact(Transaction((), puts))
        await client.close()

    def put(self, key: str, text: str) -> None:
        self.etcd.etcdctl("put", f"{self.prefix}/{key}", text)

    def delete(self, key: str, *options: str) -> None:
        self.etcd.etcdctl("del", f"{self.prefix}/{key}", *options)

    @property
    def leases(self) -> set[str]:
        return {key for key in self.keys if key.startswith("subnets/")}

    @property
    def keys(self) -> set[str]:
        listed = self.etcd.etcdctl("get", "--keys-only", "--prefix", f"{self.prefix}/")
        return {key.removeprefix(f"{self.prefix}/") for key in listed.split()} - {"released"}


class Client:
    """A subscriber, and what it knows."""

    def __init__(self, stub: lease_pb2_grpc.LeaseServiceStub) -> None:
        self.stub = stub
        self.table = Table()
        self.lost: set[str] = set()
        """Leases that were ever removed."""

    async def follow(self) -> None:
        call = self.stub.WatchLeases(pb.WatchLeasesRequest())
        while True:
            before = set(self.table.leases)
            self.table.fold(await next_step(call))
            self.lost |= before - set(self.table.leases)

    async def until_quarantined(self, key: str) -> pb.QuarantinedKey:
        async with asyncio.timeout(10):
            while True:
                for found in (await self.stub.ListQuarantine(pb.ListQuarantineRequest())).keys:
                    if found.key == key:
                        return found
                await asyncio.sleep(0.02)

    async def until_none_quarantined(self) -> None:
        async with asyncio.timeout(10):
            while (await self.stub.ListQuarantine(pb.ListQuarantineRequest())).keys:  # noqa: ASYNC110 - in another process
                await asyncio.sleep(0.02)

    async def until_held(self, count: int) -> pb.ListQuarantineResponse:
        async with asyncio.timeout(10):
            while True:
                answer = await self.stub.ListQuarantine(pb.ListQuarantineRequest())
                if len(answer.held_removals) == count:
                    return answer
                await asyncio.sleep(0.02)

    async def until_known(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.table.leases) != count or not self.table.synced:  # noqa: ASYNC110 - what is waited for happens in another process
                await asyncio.sleep(0.02)


@asynccontextmanager
async def watching(
    directory: Path, network: Network, seconds: float = LONG, known: int = len(NAMES)
) -> AsyncIterator[Client]:
    store = ("--store=etcd", f"--etcd-endpoints={network.etcd.endpoint}", f"--etcd-prefix={network.prefix}")
    with ServiceProcess(directory, "--central", *store, f"--guard-seconds={seconds}") as process:
        async with stub_of(process.address) as stub:
            client = Client(stub)
            task = asyncio.create_task(client.follow())
            await client.until_known(known)
            try:
                yield client
            finally:
                task.cancel()
                await asyncio.wait([task])
        process.terminate()


@pytest.fixture
async def network(etcd: EtcdServer) -> Network:
    network = Network(etcd)
    await network.fill()
    return network


BAD = [
    ("nonsense", "x", "key 'nonsense' is not a lease: expected something like 10.5.52.0-24"),
    ("10.5.99.0-33", value(99), "key '10.5.99.0-33' is not a lease"),
    (NAMES[0], "no JSON", "the value of 10.5.1.0-24"),
    ("10.5.99.0-24", '{"PublicIP":"nonsense"}', "PublicIP 'nonsense' of 10.5.99.0-24 is no IPv4 address"),
]


async def test_defect_01_a_key_or_value_that_does_not_parse_removes_no_peer(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        for name, text, reason in BAD:
            network.put(f"subnets/{name}", text)
            found = await client.until_quarantined(name)
            assert reason in found.reason
            assert found.kind == pb.REFUSAL_KIND_UNREADABLE
            if name != NAMES[0]:
                network.delete(f"subnets/{name}")
        network.put(f"subnets/{NAMES[0]}", value(1))
        network.put("subnets/10.5.200.0-24", value(200))
        await client.until_known(21)
        assert client.lost == set()
        assert not (await client.stub.ListQuarantine(pb.ListQuarantineRequest())).keys


async def test_defect_01_a_key_wider_than_the_network_takes_nothing_of_it(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        for name in ("0.0.0.0-0", "10.5.0.0-16"):
            network.put(f"subnets/{name}", value(99))
            assert (await client.until_quarantined(name)).kind == pb.REFUSAL_KIND_OUTSIDE_NETWORK
        wanted = pb.Subnet(public_address="172.16.0.100")
        request = pb.AcquireLeaseRequest(node="new", backend_type="host-gw", subnets=[wanted])
        assert (await client.stub.AcquireLease(request)).lease.name.endswith(".0-24")
        reserved = (await client.stub.ReserveSubnet(pb.ReserveSubnetRequest(cidrs=["10.5.250.0/24"]))).lease
        await client.until_known(22)
        assert reserved.name in client.table.leases


async def test_defect_01_a_deletion_of_every_lease_leaves_all_peers_until_it_is_confirmed(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        network.delete("subnets/", "--prefix")
        held = await client.until_held(20)
        assert list(held.held_removals) == sorted(NAMES)
        assert held.held_since_time.seconds > 1_700_000_000
        status = await client.stub.GetStatus(pb.GetStatusRequest())
        assert (status.leases, status.held_removals, status.ready) == (20, 20, True)
        assert status.held_reason.startswith("20 leases went from the etcd store at once and are kept")
        network.put(f"subnets/{NAMES[4]}", value(5))
        network.put("subnets/10.5.200.0-24", value(200))
        await client.until_known(21)
        await client.until_held(19)
        assert client.lost == set()
        confirmed = await client.stub.ConfirmRemoval(pb.ConfirmRemovalRequest())
        assert set(confirmed.removed) == set(NAMES) - {NAMES[4]}
        await client.until_known(2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.stub.ConfirmRemoval(pb.ConfirmRemovalRequest())
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_defect_01_a_subnet_whose_lease_is_held_goes_to_its_own_node_only(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        network.delete("subnets/", "--prefix")
        await client.until_held(20)
        new = await client.stub.AcquireLease(lease_to_ask_for("new", "10.99.9.9", "10.5.3.0/24"))
        assert new.lease.name not in NAMES
        own_address = json.loads(value(3))["PublicIP"]
        own = await client.stub.AcquireLease(lease_to_ask_for("n3", own_address, "10.5.3.0/24"))
        assert own.lease.name == "10.5.3.0-24"
        assert client.lost == set()


async def test_defect_01_a_deletion_that_is_true_is_carried_out_after_a_second_listing(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network, 0.5) as client:
        network.delete("subnets/", "--prefix")
        await client.until_held(20)
        assert client.lost == set()
        await client.until_known(0)
    said = [line for line in (tmp_path / "lease.log").read_text().splitlines() if "[warning" in line]
    assert ["gone from the store at once" in said[0], "are carried out" in said[1]] == [True, True]


async def test_defect_01_an_etcd_that_comes_back_empty_leaves_all_peers_until_it_is_confirmed(
    tmp_path: Path, own_etcd: EtcdServer, make_etcd: EtcdMaker
) -> None:
    service = tmp_path / "service"
    service.mkdir()
    network = Network(own_etcd)
    await network.fill()
    async with watching(service, network, 1.5) as client:
        own_etcd.kill()
        empty = EtcdServer(tmp_path / "empty", port=own_etcd.port, peer_port=own_etcd.peer_port)
        empty.directory.mkdir()
        make_etcd.stack.callback(empty.kill)
        empty.start()
        await client.until_held(20)
        assert client.lost == set()
        empty.kill()  # and now there is nobody to confirm it
        await asyncio.sleep(2)
        status = await client.stub.GetStatus(pb.GetStatusRequest())
        assert "the second listing cannot be had: etcd at" in status.held_reason
        assert not status.ready
        assert client.lost == set()
        empty.start()
        network.etcd = empty
        network.put("config", SMALL_JSON)
        await client.until_known(0)


class Node:
    """A dataplane without a kernel: it holds a lease, and follows the table."""

    def __init__(self, address: str, number: int) -> None:
        name = f"node{number}"
        self.connection = LeaseConnection(address, name)
        self.holder = Holder(self.connection, 3600, lambda: None, Journal())
        self.feed = Feed(self.connection, pb.VIEW_ALL, self.notice)
        self.holder.want(make_request(name, f"172.16.1.{number}"))

    def notice(self, touched: frozenset[str]) -> None:
        if self.feed.table.lost:
            self.holder.hear_of_loss(self.feed.table.lost)
        self.holder.observe(self.feed.table)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.feed.run())
                group.create_task(self.holder.run())
        finally:
            await self.connection.close()


async def test_defect_01_nodes_whose_leases_were_deleted_take_them_again_and_no_table_ever_lacks_one(
    tmp_path: Path, network: Network
) -> None:
    network.delete("subnets/", "--prefix")
    store = ("--store=etcd", f"--etcd-endpoints={network.etcd.endpoint}", f"--etcd-prefix={network.prefix}")
    with ServiceProcess(tmp_path, "--central", *store, "--guard-seconds=4") as process:
        async with stub_of(process.address) as stub, asyncio.TaskGroup() as group:
            nodes = [Node(process.address, number) for number in range(1, 13)]
            client = Client(stub)
            tasks = [group.create_task(job()) for job in (client.follow, *(node.run for node in nodes))]
            await client.until_known(12)
            before = network.leases
            network.delete("subnets/", "--prefix")
            await eventually(lambda: "gone from the store at once" in (tmp_path / "lease.log").read_text())
            await client.until_held(0)
            assert network.leases == before
            assert "are carried out" not in (tmp_path / "lease.log").read_text()
            assert (client.lost, len(client.table.leases)) == (set(), 12)
            for task in tasks:
                task.cancel()


async def test_defect_01_a_service_that_restarts_while_etcd_is_empty_still_has_the_leases_of_before(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network):
        pass
    network.delete("", "--prefix")
    async with watching(tmp_path, network) as client:
        assert (await client.until_held(20)).held_reason
        assert client.table.network is None
        network.put("config", SMALL_JSON)
        assert len((await client.stub.ConfirmRemoval(pb.ConfirmRemovalRequest())).removed) == 20
        await client.until_known(0)


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


async def test_a_lease_inside_anothers_is_refused_and_can_be_deleted(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        half = "10.5.1.0-25"
        network.put(f"subnets/{half}", value(66))
        found = await client.until_quarantined(half)
        assert (found.kind, found.other_lease) == (pb.REFUSAL_KIND_OVERLAP, NAMES[0])
        assert "which is older" in found.reason
        await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=half))
        assert f"subnets/{half}" not in network.keys
        assert half not in client.table.leases
        assert client.lost == set()
        for key, code in ((NAMES[0], grpc.StatusCode.NOT_FOUND), ("nonsense", grpc.StatusCode.NOT_FOUND)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key))
            assert refused.value.code() is code


async def test_the_lease_of_a_known_node_beats_an_older_one_and_gives_its_place_back(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        wide = "10.5.1.0-23"
        holder = json.dumps({"node": "h", "public_ip": "172.16.0.66", "public_ipv6": ""})
        network.put(f"holders/{wide.replace('1.0', '0.0')}", holder)
        network.put(f"subnets/{wide.replace('1.0', '0.0')}", value(66))
        assert (await client.until_quarantined(NAMES[0])).other_lease == "10.5.0.0-23"
        network.delete("holders/10.5.0.0-23")
        found = await client.until_quarantined("10.5.0.0-23")
        assert found.other_lease == NAMES[0]
        await client.until_known(20)
        assert NAMES[0] in client.table.leases


async def test_a_lease_outside_the_network_is_refused_until_the_network_is_wider(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        network.put("subnets/10.6.1.0-24", value(66))
        assert (await client.until_quarantined("10.6.1.0-24")).kind == pb.REFUSAL_KIND_OUTSIDE_NETWORK
        network.put("config", SMALL_JSON.replace("10.5.0.0/16", "10.0.0.0/8"))
        await client.until_known(21)
        assert "10.6.1.0-24" in client.table.leases


async def test_keys_of_any_bytes_are_told_and_deleted(tmp_path: Path, network: Network) -> None:
    async with watching(tmp_path, network) as client:
        network.put("subnets/back\\slash\n", "x")
        network.put("subnets-old/x", "x")
        network.put(f"holders/{NAMES[0]}", "x")
        for key in ("back\\\\slash\\x0a", f"{network.prefix}/subnets-old/x", f"holders/{NAMES[0]}"):
            found = await client.until_quarantined(key)
            assert "\\\\\\\\" not in found.reason, "escaped twice"
            await client.stub.DeleteQuarantined(pb.DeleteQuarantinedRequest(key=key))
        await client.until_none_quarantined()
        assert network.keys == {"config", *(f"subnets/{name}" for name in NAMES)}
        assert client.lost == set()
