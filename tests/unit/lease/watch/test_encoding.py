"""Messages are joined from pieces that were serialised before."""

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.lease import VxlanData
from flannelette.services.core.leases.table import Change, Removed, Step, StoreStatus, Upserted
from flannelette.services.lease.watch.encoding import RESET, SYNCED
from flannelette.services.runtime.lease.wire import change_to_bytes, step_to_bytes
from tests.examples.leases import NETWORK, make_lease, read
from tests.examples.strategies import leases

DATA = VxlanData(1, "02:00:00:00:00:01")

changes = st.lists(st.builds(Upserted, leases()) | st.builds(Removed, st.text("abc", min_size=1)), max_size=20)


@given(changes)
def test_joined_pieces_are_the_message_of_the_whole_step(some: list[Change]) -> None:
    whole = Step(reset=True, changes=tuple(some), synced=True, cursor="e:1")
    joined = RESET + b"".join(map(change_to_bytes, some)) + SYNCED + step_to_bytes(Step(cursor="e:1"))
    assert joined == step_to_bytes(whole)
    assert read(joined) == whole


def test_fields_may_be_joined_in_any_order() -> None:
    store = StoreStatus("etcd", False, "away")
    step = Step(changes=(Removed("x"),), network=NETWORK, network_error="bad", store=store, synced=True)
    pieces = [
        step_to_bytes(Step(network=NETWORK, network_error="bad", store=store)),
        SYNCED,
        change_to_bytes(Removed("x")),
    ]
    assert read(b"".join(pieces)) == step


def test_an_upsert_costs_about_a_hundred_bytes() -> None:
    assert len(change_to_bytes(Upserted(make_lease(1)))) < 110
