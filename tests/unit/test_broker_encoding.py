"""Messages are joined from pieces that were serialised before."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.lease import Lease, Subnet, VxlanData
from services.core.table import Change, Removed, Step, StoreStatus, Upserted
from services.lease.encoding import RESET, SYNCED, encode, encode_change
from services.lease.usual import usual_piece
from tests.lease_examples import NETWORK, make_lease, read
from tests.unit.strategies import leases

DATA = VxlanData(1, "02:00:00:00:00:01")

changes = st.lists(st.builds(Upserted, leases()) | st.builds(Removed, st.text("abc", min_size=1)), max_size=20)


@given(changes)
def test_joined_pieces_are_the_message_of_the_whole_step(some: list[Change]) -> None:
    whole = Step(reset=True, changes=tuple(some), synced=True, cursor="e:1")
    joined = RESET + b"".join(map(encode_change, some)) + SYNCED + encode(Step(cursor="e:1"))
    assert joined == encode(whole)
    assert read(joined) == whole


@given(
    lease=leases(),
    name=st.text(max_size=200),
    node=st.text(max_size=200),
    vni=st.none() | st.integers(0, 200),
    mac=st.none() | st.text(max_size=100),
    expires_at=st.none() | st.just(7.0),
    reserved=st.booleans(),
)
def test_a_piece_put_together_by_hand_is_that_of_protobuf(
    lease: Lease, name: str, node: str, vni: int | None, mac: str | None, expires_at: float | None, reserved: bool
) -> None:
    subnets = tuple(
        replace(s, data=VxlanData(s.data.vni if vni is None else vni, s.data.mac if mac is None else mac))
        if isinstance(s.data, VxlanData)
        else s
        for s in lease.subnets
    )
    made = Lease(name, node, subnets, lease.backend_type, expires_at, reserved)
    assert usual_piece(made) in (None, encode(Step(changes=(Upserted(made),))))


@pytest.mark.parametrize("name_length", [11, 40, 127])
def test_most_leases_are_put_together_by_hand(name_length: int) -> None:
    lease = make_lease(1, expires_at=None)
    dual = replace(lease, subnets=(*lease.subnets, Subnet(ip_network("fd00::/64"), ip_address("fd00::1"), DATA)))
    for each in (lease, dual):
        named = replace(each, name="x" * name_length)
        assert usual_piece(named) == encode(Step(changes=(Upserted(named),)))
    assert usual_piece(replace(lease, name="x" * 128)) is None


def test_fields_may_be_joined_in_any_order() -> None:
    store = StoreStatus("etcd", False, "away")
    step = Step(changes=(Removed("x"),), network=NETWORK, network_error="bad", store=store, synced=True)
    pieces = [encode(Step(network=NETWORK, network_error="bad", store=store)), SYNCED, encode_change(Removed("x"))]
    assert read(b"".join(pieces)) == step


def test_an_upsert_costs_about_a_hundred_bytes() -> None:
    assert len(encode_change(Upserted(make_lease(1)))) < 110
