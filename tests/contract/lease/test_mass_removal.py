"""Defect 1 of flannel v0.28, against a real etcd: one bad key, or a listing that lacks them, removed every peer."""

from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from tests.etcd.server import EtcdMaker, EtcdServer
from tests.examples.leases import SMALL_JSON
from tests.flannel.network import NAMES, Network, value, watching
from tests.waiting import eventually

BAD = [
    ("nonsense", "x", "key 'nonsense' is not a lease: expected something like 10.5.52.0-24"),
    ("10.5.99.0-33", value(99), "key '10.5.99.0-33' is not a lease"),
    (NAMES[0], "no JSON", "the value of 10.5.1.0-24"),
    ("10.5.99.0-24", '{"PublicIP":"nonsense"}', "PublicIP 'nonsense' of 10.5.99.0-24 is not an IPv4 address"),
]


async def test_a_key_or_value_that_does_not_parse_removes_no_peer(tmp_path: Path, network: Network) -> None:
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


async def test_a_key_wider_than_the_network_takes_nothing_of_it(tmp_path: Path, network: Network) -> None:
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


async def test_a_deletion_of_every_lease_leaves_all_peers_until_it_is_confirmed(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network) as client:
        network.delete("subnets/", "--prefix")
        held = await client.until_held(20)
        assert list(held.held_removals) == sorted(NAMES)
        assert held.held_since_time.seconds > 1_700_000_000
        status = await client.stub.GetStatus(pb.GetStatusRequest())
        assert (status.leases, status.held_removals, status.ready) == (20, 20, True)
        assert status.held_reason.startswith("20 leases vanished from the etcd store at once and are kept")
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


async def test_a_deletion_that_is_true_is_carried_out_after_a_second_listing(
    tmp_path: Path, network: Network
) -> None:
    async with watching(tmp_path, network, 0.5) as client:
        network.delete("subnets/", "--prefix")
        await client.until_held(20)
        assert client.lost == set()
        await client.until_known(0)
    said = [line for line in (tmp_path / "lease.log").read_text().splitlines() if "[warning" in line]
    assert ["vanished from the store at once" in said[0], "are carried out" in said[1]] == [True, True]


async def test_an_etcd_that_comes_back_empty_leaves_all_peers_until_it_is_confirmed(
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
        status = await eventually(
            lambda: client.stub.GetStatus(pb.GetStatusRequest()),
            lambda status: "the second listing failed: etcd at" in status.held_reason,
        )
        assert not status.ready
        assert client.lost == set()
        empty.start()
        network.etcd = empty
        network.put("config", SMALL_JSON)
        await client.until_known(0)


async def test_a_service_that_restarts_while_etcd_is_empty_still_has_the_leases_of_before(
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
