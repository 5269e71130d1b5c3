"""Messages are joined from pieces that were serialised before."""

import pytest
from flannelette.lease.v1 import lease_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from services.core.lease import Lease, OpaqueData, Subnet
from services.core.table import Change, Removed, Step, StoreStatus, Upserted
from services.lease.encoding import MOST_BYTES, RESET, SYNCED, encode, encode_change, messages
from tests.lease_examples import NETWORK, make_lease, read, subnet
from tests.unit.strategies import leases

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


@pytest.mark.parametrize(
    ("count", "sizes"), [(0, [0]), (1, [1]), (500, [500]), (501, [500, 1]), (1200, [500, 500, 200])]
)
def test_a_message_has_at_most_500_changes(count: int, sizes: list[int]) -> None:
    made = messages(
        [encode_change(Removed(str(number))) for number in range(count)], first=RESET, last=SYNCED, each=b""
    )
    steps = [read(message) for message in made]
    assert [len(step.changes) for step in steps] == sizes
    assert [change for step in steps for change in step.changes] == [Removed(str(n)) for n in range(count)]
    assert [step.reset for step in steps] == [True] + [False] * (len(sizes) - 1)
    assert [step.synced for step in steps] == [False] * (len(sizes) - 1) + [True]


def test_each_goes_into_every_message() -> None:
    made = messages([encode_change(Removed(str(number))) for number in range(501)], each=SYNCED)
    assert [read(message).synced for message in made] == [True, True]


def test_a_message_of_long_changes_stays_below_a_megabyte() -> None:
    def long_lease(number: int, size: int) -> Lease:
        return Lease(f"l{number}", "n", (Subnet(subnet(number), None, OpaqueData('"' + "x" * size + '"')),), "x")

    sizes = [MOST_BYTES // 4] * 10 + [2 * MOST_BYTES] + [10] * 10
    some = [Upserted(long_lease(number, size)) for number, size in enumerate(sizes)]
    made = messages([encode_change(change) for change in some])
    assert [change for message in made for change in read(message).changes] == some
    lonely = [m for m in made if len(m) > MOST_BYTES]
    assert [len(pb.WatchLeasesResponse.FromString(m).changes) for m in lonely] == [1]
    assert len(made) < 10


def test_an_upsert_costs_about_a_hundred_bytes() -> None:
    assert len(encode_change(Upserted(make_lease(1)))) < 110
