"""The unary calls of the lease service: what they answer, and with which status they refuse."""

import json
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.errors import Exhausted, LostRace, NotYet, Unavailable
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.leases.table import StoreStatus, Upserted
from flannelette.services.core.network import parse_network
from flannelette.services.runtime.lease.wire import lease_from_proto, lease_to_proto, request_to_proto
from tests.examples.leases import NETWORK_JSON, make_lease, make_request
from tests.services.lease import FakeStore, serving

A, B = make_lease(1), make_lease(2)
V4_AND_V6 = (ip_network("10.5.9.0/24"), ip_network("fd00:0:0:9::/64"))

Stub = lease_pb2_grpc.LeaseServiceStub


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_the_list_is_sorted_and_says_what_is_in_force(tmp_path: Path) -> None:
    async with serving(FakeStore(B, A), tmp_path) as running:
        answer = await running.stub.ListLeases(pb.ListLeasesRequest())
        assert [lease_from_proto(lease) for lease in answer.leases] == [A, B]
        assert answer.network.json == NETWORK_JSON
        assert (answer.store.connected, answer.cursor, answer.network_error) == (True, "epoch:0", "")
        answer = await running.stub.ListLeases(pb.ListLeasesRequest(node="node2"))
        assert [lease.name for lease in answer.leases] == [B.name]


async def test_the_list_of_a_nodes_own_service_is_all_and_its_filter_any_node(tmp_path: Path) -> None:
    async with serving(FakeStore(A, B), tmp_path, node="node1") as running:
        assert len((await running.stub.ListLeases(pb.ListLeasesRequest())).leases) == 2
        for lease in (A, B):
            answer = await running.stub.ListLeases(pb.ListLeasesRequest(node=lease.node))
            assert [found.name for found in answer.leases] == [lease.name]
        code, _ = await refusal(running.stub.ListLeases(pb.ListLeasesRequest(node="a b")))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_list_finds_the_leases_of_an_address(tmp_path: Path) -> None:
    pod, node = str(A.subnets[0].cidr[7]), str(A.subnets[0].public_address)
    async with serving(FakeStore(A, B), tmp_path) as running:
        for address in (pod, node):
            answer = await running.stub.ListLeases(pb.ListLeasesRequest(address=address))
            assert [lease.name for lease in answer.leases] == [A.name]
        answer = await running.stub.ListLeases(pb.ListLeasesRequest(node="node2", address=pod))
        assert not answer.leases
        code, message = await refusal(running.stub.ListLeases(pb.ListLeasesRequest(address="10.0.1")))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert message == "address '10.0.1' is not an IP address: write for instance 10.5.52.2"


async def test_nothing_is_listed_before_the_first_snapshot(tmp_path: Path) -> None:
    async with serving(FakeStore(), tmp_path, snapshot=False) as running:
        code, message = await refusal(running.stub.ListLeases(pb.ListLeasesRequest()))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "not known yet" in message


async def test_an_acquired_lease_is_answered_when_the_table_shows_it(tmp_path: Path) -> None:
    store = FakeStore()

    def acquire(request: LeaseRequest) -> Lease:
        assert request == make_request("a", "172.16.0.1", "10.0.1.0/24")
        store.tells(Upserted(A))
        return A

    store.on_acquire = acquire
    async with serving(store, tmp_path) as running:
        request = request_to_proto(make_request("a", "172.16.0.1", "10.0.1.0/24"))
        answer = await running.stub.AcquireLease(request)
        assert lease_from_proto(answer.lease) == A
        assert running.broker.table.leases == {A.name: A}


async def test_an_acquired_lease_is_answered_after_two_seconds_even_if_the_watch_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flannelette.services.lease.service._READ_OWN_WRITE_SECONDS", 0.01)
    store = FakeStore()
    store.on_acquire = lambda request: A
    async with serving(store, tmp_path) as running:
        answer = await running.stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")))
        assert lease_from_proto(answer.lease) == A


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (NotYet("held by b"), grpc.StatusCode.FAILED_PRECONDITION),
        (Exhausted("3 of 3"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (LostRace("again"), grpc.StatusCode.ABORTED),
        (Unavailable("etcd is away"), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_what_the_store_raises_has_its_status_and_message(
    tmp_path: Path, fault: Exception, code: grpc.StatusCode
) -> None:
    store = FakeStore()
    store.fault = fault
    async with serving(store, tmp_path) as running:
        request = request_to_proto(make_request("a", "172.16.0.1"))
        assert await refusal(running.stub.AcquireLease(request)) == (code, str(fault))


async def test_a_defect_is_internal_and_tells_no_secrets(tmp_path: Path) -> None:
    store = FakeStore()
    store.fault = ValueError("the password is swordfish")
    async with serving(store, tmp_path) as running:
        code, message = await refusal(running.stub.RenewLease(pb.RenewLeaseRequest(node="a", name="x")))
        assert code is grpc.StatusCode.INTERNAL
        assert "swordfish" not in message


async def test_renewing_and_releasing(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        answer = await running.stub.RenewLease(pb.RenewLeaseRequest(node="node1", name=A.name))
        assert answer.lease == lease_to_proto(A)
        code, message = await refusal(running.stub.RenewLease(pb.RenewLeaseRequest(node="node1", name="other")))
        assert (code, message) == (grpc.StatusCode.NOT_FOUND, "acquire again")
        assert await running.stub.ReleaseLease(pb.ReleaseLeaseRequest(node="node1", name=A.name)) is not None


async def test_a_node_gives_back_whatever_it_holds_when_it_names_no_lease(tmp_path: Path) -> None:
    store = FakeStore(A, B)
    async with serving(store, tmp_path) as running:
        await running.stub.ReleaseLease(pb.ReleaseLeaseRequest(node="node1"))
        assert store.released == [("node1", A.name)]


CALLS: list[Callable[[Stub, str], Any]] = [
    lambda stub, node: stub.AcquireLease(request_to_proto(make_request(node, "172.16.0.1"))),
    lambda stub, node: stub.RenewLease(pb.RenewLeaseRequest(node=node, name="x")),
    lambda stub, node: stub.ReleaseLease(pb.ReleaseLeaseRequest(node=node, name="x")),
]


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_about_a_node_needs_it_and_serves_no_other(
    tmp_path: Path, call: Callable[[Stub, str], Any]
) -> None:
    async with serving(FakeStore(), tmp_path) as central:
        assert (await refusal(call(central.stub, "")))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert (await refusal(call(central.stub, "a b")))[0] is grpc.StatusCode.INVALID_ARGUMENT
    async with serving(FakeStore(), tmp_path, node="a") as own:
        assert (await refusal(call(own.stub, "b")))[0] is grpc.StatusCode.PERMISSION_DENIED


async def test_the_status_shows_no_key_of_the_network_configuration(tmp_path: Path) -> None:
    key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    text = f'{{"Network":"10.5.0.0/16","Backend":{{"Type":"wireguard","PSK":"{key}"}}}}'
    async with serving(FakeStore(), tmp_path) as running:
        running.tells(network=parse_network(text))
        status = await running.stub.GetStatus(pb.GetStatusRequest())
        assert key not in str(status)
        assert json.loads(status.network.json)["Backend"] == {"Type": "wireguard", "PSK": "(hidden)"}
        answer = await running.stub.ListLeases(pb.ListLeasesRequest())
        assert answer.network.json == text, "from which a relay and the nodes have it"


async def test_the_status_says_what_is_missing_and_then_ready(tmp_path: Path) -> None:
    store = FakeStore(A)
    async with serving(store, tmp_path, node="node1") as running:
        status = await running.stub.GetStatus(pb.GetStatusRequest())
        assert (status.node, status.leases, status.cursor) == ("node1", 1, "epoch:0")
        assert status.store.connected
        assert status.network.json == NETWORK_JSON
        assert status.start_time.seconds > 1_700_000_000
        running.broker.take(StoreStatus("fake", False, "cable cut"))
        status = await running.stub.GetStatus(pb.GetStatusRequest())
        assert status.store.HasField("connected"), "JSON shows false only where it is set"
        assert status.store.error == "cable cut"


async def test_refused_keys_are_counted_and_listed(tmp_path: Path) -> None:
    """Defect 1 of flannel v0.28: a key that is no lease changes nothing here."""
    async with serving(FakeStore(A), tmp_path) as running:
        running.tells(refused={"foo": "is no lease", "bar": "is none either"})
        answer = await running.stub.ListQuarantine(pb.ListQuarantineRequest())
        assert [(key.key, key.reason) for key in answer.keys] == [("bar", "is none either"), ("foo", "is no lease")]
        assert answer.keys[0].first_seen_time.seconds > 1_700_000_000
        status = await running.stub.GetStatus(pb.GetStatusRequest())
        assert (status.quarantined, status.leases) == (2, 1)


async def test_a_subnet_is_reserved_for_any_node_and_freed(tmp_path: Path) -> None:
    store = FakeStore()
    async with serving(store, tmp_path, node="n1") as running:
        call = running.stub.ReserveSubnet(
            pb.ReserveSubnetRequest(cidrs=["fd00:0:0:9::/64", "10.5.9.0/24"], node="n9")
        )
        store.tells(Upserted(await store.reserve(V4_AND_V6, "n9")))
        lease = (await call).lease
        assert (lease.name, lease.node, lease.reserved) == ("10.5.9.0-24&fd00:0:0:9::-64", "n9", True)
        await running.stub.ReleaseSubnet(pb.ReleaseSubnetRequest(name=lease.name))
        assert store.unreserved == [lease.name]


@pytest.mark.parametrize("text", ["10.5.9.0", "10.5.9.1/24", "10.5.9.0/33", "fd00::1/64", ""])
async def test_what_is_no_subnet_cannot_be_reserved(tmp_path: Path, text: str) -> None:
    async with serving(FakeStore(), tmp_path) as running:
        code, message = await refusal(running.stub.ReserveSubnet(pb.ReserveSubnetRequest(cidrs=[text])))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "is not a subnet: write it like" in message


async def test_leases_are_reclaimed_as_asked_and_told_with_when_their_node_was_seen(tmp_path: Path) -> None:
    store = FakeStore(A)
    async with serving(store, tmp_path) as running:
        request = pb.ReclaimLeasesRequest(dry_run=True)
        request.unseen_for.FromSeconds(3600)
        response = await running.stub.ReclaimLeases(request)
        assert store.reclaims == [({"unseen_seconds": 3600.0}, True)]
        assert [(each.lease.name, each.last_seen_time.seconds) for each in response.reclaimed] == [
            (A.name, 1_000_000)
        ]
        await running.stub.ReclaimLeases(pb.ReclaimLeasesRequest(names=["a", "b", "a"]))
        assert store.reclaims[1] == ({"names": ("a", "b")}, False)
