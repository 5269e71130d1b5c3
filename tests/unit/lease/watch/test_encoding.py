"""Messages are joined from pieces that were serialised before."""

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.lease import VxlanData
from flannelette.services.core.leases.table import Change, Removed, Step, StoreStatus, Upserted
from flannelette.services.lease.watch.encoding import RESET, SYNCED, encode, encode_change
from tests.examples.leases import NETWORK, make_lease, read
from tests.examples.strategies import leases

DATA = VxlanData(1, "02:00:00:00:00:01")

changes = st.lists(st.builds(Upserted, leases()) | st.builds(Removed, st.text("abc", min_size=1)), max_size=20)


@given(changes)
def test_joined_pieces_are_the_message_of_the_whole_step(some: list[Change]) -> None:
    whole = Step(reset=True, changes=tuple(some), synced=True, cursor="e:1")
    joined = RESET + b"".join(map(encode_change, some)) + SYNCED + encode(Step(cursor="e:1"))
    assert joined == encode(whole)
    assert read(joined) == whole


def test_fields_may_be_joined_in_any_order() -> None:
    store = StoreStatus("etcd", False, "away")
    step = Step(changes=(Removed("x"),), network=NETWORK, network_error="bad", store=store, synced=True)
    pieces = [encode(Step(network=NETWORK, network_error="bad", store=store)), SYNCED, encode_change(Removed("x"))]
    assert read(b"".join(pieces)) == step


def test_an_upsert_costs_about_a_hundred_bytes() -> None:
    assert len(encode_change(Upserted(make_lease(1)))) < 110
