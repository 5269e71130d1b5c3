"""What an event of the store changes in the table."""

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Table, Upserted
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.stores.store import Changed, Snapshot
from flannelette.services.lease.watch.diff import NOTHING, step_of
from tests.examples.leases import NETWORK, SMALL, by_name, make_lease

A, B, C = make_lease(1), make_lease(2), make_lease(3)
A2 = make_lease(1, version=2)
UP = StoreStatus("etcd", True)
AWAY = StoreStatus("etcd", False, "connection refused")


def table(*leases: Lease, network: NetworkConfig | None = NETWORK, error: str = "", synced: bool = True) -> Table:
    return Table(by_name(*leases), network, error, UP, synced)


def test_a_relisting_after_compaction_is_a_difference_by_value() -> None:
    """Defect 2 of flannel v0.28: it missed changed attributes, and removed the own subnet."""
    step = step_of(table(A, B), Snapshot(by_name(A2, B, C), NETWORK))
    assert step == Step(changes=(Upserted(A2), Upserted(C)))


def test_a_snapshot_equal_to_the_table_is_nothing() -> None:
    assert step_of(table(A, B), Snapshot(by_name(B, A), NETWORK)) == NOTHING


def test_the_first_snapshot_makes_the_table_complete_even_if_empty() -> None:
    step = step_of(table(network=None, synced=False), Snapshot({}, NETWORK))
    assert step == Step(network=NETWORK, synced=True)


def test_a_snapshot_says_that_the_store_is_there() -> None:
    known = table(A)
    known.store = AWAY
    assert step_of(known, Snapshot(by_name(A), NETWORK)) == Step(store=UP)


def test_a_snapshot_without_network_keeps_the_last_good_one() -> None:
    step = step_of(table(A), Snapshot(by_name(A), None, "the key is missing"))
    assert step == Step(network_error="the key is missing")


def test_a_snapshot_without_network_and_without_reason_still_says_so() -> None:
    assert step_of(table(network=None, synced=False), Snapshot({}, None)).network_error


def test_a_network_that_is_right_again_is_news_because_it_clears_the_error() -> None:
    assert step_of(table(error="bad"), Changed(network=NETWORK)) == Step(network=NETWORK)
    assert step_of(table(), Changed(network=NETWORK)) == NOTHING
    assert step_of(table(), Changed(network=SMALL)) == Step(network=SMALL)


def test_an_error_that_is_known_is_no_news() -> None:
    assert step_of(table(error="bad"), Changed(network_error="bad")) == NOTHING
    assert step_of(table(error="bad"), Changed(network_error="worse")) == Step(network_error="worse")


def test_changes_that_change_nothing_are_left_out() -> None:
    event = Changed((Upserted(A), Removed("nobody"), Upserted(B)))
    assert step_of(table(A), event) == Step(changes=(Upserted(B),))


def test_the_order_of_changes_of_one_lease_is_kept() -> None:
    event = Changed((Removed(A.name), Upserted(A), Upserted(A), Upserted(A2), Removed(B.name)))
    step = step_of(table(A), event)
    assert step.changes == (Removed(A.name), Upserted(A), Upserted(A2))


def test_a_refused_key_changes_nothing() -> None:
    """Defect 1 of flannel v0.28: one bad key emptied every node."""
    assert step_of(table(A, B), Changed(refused={"foo": "is no lease"})) == NOTHING
    assert step_of(table(A, B), Snapshot(by_name(A, B), NETWORK, refused={"foo": "is no lease"})) == NOTHING


def test_no_lease_changes_before_the_first_snapshot() -> None:
    event = Changed((Upserted(A),), network_error="bad")
    assert step_of(table(network=None, synced=False), event) == Step(network_error="bad")


def test_the_status_of_the_store_is_news_when_it_changes() -> None:
    assert step_of(table(), UP) == NOTHING
    assert step_of(table(), AWAY) == Step(store=AWAY)
