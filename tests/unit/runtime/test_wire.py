"""Domain types to protobuf and back."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.addresses import never_public
from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Upserted
from flannelette.services.runtime.lease.wire import (
    change_to_bytes,
    lease_from_proto,
    lease_to_proto,
    network_from_proto,
    network_to_proto,
    request_from_proto,
    request_to_proto,
    step_from_proto,
    step_to_bytes,
    step_to_proto,
)
from tests.examples.leases import DUAL_JSON, NETWORK, SMALL, make_lease, make_request, network, read
from tests.examples.strategies import leases

times = st.none() | st.integers(1, 4_000_000_000).map(float)
changes = st.builds(Upserted, leases()) | st.builds(Removed, st.text(min_size=1, max_size=5))
steps = st.builds(
    Step,
    reset=st.booleans(),
    changes=st.lists(changes, max_size=5).map(tuple),
    network=st.sampled_from([None, NETWORK, SMALL, network(DUAL_JSON)]),
    network_error=st.sampled_from(["", "bad"]),
    store=st.none() | st.builds(StoreStatus, st.just("etcd"), st.booleans(), st.sampled_from(["", "away"])),
    synced=st.booleans(),
    cursor=st.sampled_from(["", "e:1"]),
)


@given(leases(), times, st.sampled_from(["", "a"]), st.booleans())
def test_every_lease_comes_back(lease: Lease, expires_at: float | None, node: str, reserved: bool) -> None:
    whole = replace(lease, expires_at=expires_at, node=node, reserved=reserved)
    assert lease_from_proto(pb.Lease.FromString(lease_to_proto(whole).SerializeToString())) == whole


@given(steps)
def test_every_step_comes_back(step: Step) -> None:
    assert step_from_proto(pb.WatchLeasesResponse.FromString(step_to_proto(step).SerializeToString())) == step


@given(leases())
def test_every_request_comes_back(lease: Lease) -> None:
    parts = tuple(FamilyRequest(s.public_address, s.data, s.cidr) for s in lease.subnets if s.public_address)
    assume(not any(never_public(part.public_address) for part in parts))
    request = LeaseRequest("a", lease.backend_type, parts)
    assert request_from_proto(request_to_proto(request)) == request


def test_a_request_lists_ipv4_first_whatever_was_sent() -> None:
    request = make_request("a", "172.16.0.1", public_v6="fd99::1")
    message = request_to_proto(request)
    swapped = pb.AcquireLeaseRequest(node="a", backend_type="vxlan", subnets=reversed(message.subnets))
    assert request_from_proto(swapped) == request


def test_the_network_is_readable_and_its_json_is_what_counts() -> None:
    message = network_to_proto(SMALL)
    assert message.families[0] == pb.NetworkFamily(
        cidr="10.5.0.0/16", subnet_length=24, subnet_min="10.5.1.0", subnet_max="10.5.255.0"
    )
    assert network_from_proto(message) == SMALL


@pytest.mark.parametrize(
    "message",
    [
        pb.Lease(subnets=[pb.Subnet(cidr="10.5.1.0")]),
        pb.Lease(subnets=[pb.Subnet(cidr="10.5.1.1/24")]),
        pb.Lease(subnets=[pb.Subnet(cidr="")]),
        pb.Lease(subnets=[pb.Subnet(cidr="10.5.1.0/24", public_address="x")]),
    ],
)
def test_a_lease_that_cannot_be_read_is_invalid(message: pb.Lease) -> None:
    with pytest.raises(InvalidInput):
        lease_from_proto(message)


def test_a_request_with_odd_addresses_is_invalid() -> None:
    subnets = [pb.Subnet(public_address="172.16.0.1"), pb.Subnet(public_address="172.16.0.2")]
    with pytest.raises(InvalidInput, match="one entry for each"):
        request_from_proto(pb.AcquireLeaseRequest(subnets=subnets))
    with pytest.raises(InvalidInput, match="public_address is empty"):
        request_from_proto(pb.AcquireLeaseRequest(subnets=[pb.Subnet()]))
    with pytest.raises(InvalidInput, match="of two address families"):
        request_from_proto(pb.AcquireLeaseRequest(subnets=[pb.Subnet(cidr="::/0", public_address="172.16.0.1")]))


@given(st.lists(changes, max_size=20))
def test_pieces_that_are_serialised_apart_join_to_the_message_of_the_whole_step(
    some: list[Upserted | Removed],
) -> None:
    store = StoreStatus("etcd", False, "away")
    whole = Step(reset=True, changes=tuple(some), network=NETWORK, store=store, synced=True, cursor="e:1")
    head = step_to_bytes(Step(reset=True, network=NETWORK, store=store))
    end = step_to_bytes(Step(synced=True)) + step_to_bytes(Step(cursor="e:1"))
    assert read(head + b"".join(map(change_to_bytes, some)) + end) == whole
    assert read(b"".join(map(change_to_bytes, some)) + end + head) == whole, "in any order of the fields"


def test_an_upsert_costs_about_a_hundred_bytes() -> None:
    assert len(change_to_bytes(Upserted(make_lease(1)))) < 110
