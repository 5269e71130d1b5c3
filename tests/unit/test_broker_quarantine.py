"""Refused keys: shown to an operator, and nothing else."""

from itertools import count

from services.core.table import Removed, StoreStatus, Upserted
from services.lease.quarantine import Quarantine, Refused
from services.lease.store import Changed, Snapshot
from tests.lease_examples import NETWORK, make_lease

A = make_lease(1)


def quarantine() -> Quarantine:
    ticks = count(100)
    return Quarantine(lambda: float(next(ticks)))


def test_a_refused_key_is_kept_with_its_reason_and_first_time() -> None:
    kept = quarantine()
    kept.take(Changed(refused={"foo": "is no lease"}))
    kept.take(Changed(refused={"foo": "is still no lease"}))
    kept.take(StoreStatus("etcd", True))
    assert kept.keys == {"foo": Refused("is still no lease", 100.0)}


def test_a_snapshot_says_all_that_is_refused() -> None:
    kept = quarantine()
    kept.take(Changed(refused={"foo": "bad", "bar": "bad"}))
    kept.take(Snapshot({}, NETWORK, refused={"bar": "bad", "new": "bad"}))
    assert set(kept.keys) == {"bar", "new"}
    assert kept.keys["bar"].first_seen == 101.0


def test_a_key_that_is_put_right_or_removed_leaves() -> None:
    kept = quarantine()
    kept.take(Changed(refused={A.name: "bad", "gone": "bad"}))
    kept.take(Changed((Upserted(A), Removed("gone")), cleared=frozenset({A.name, "gone"})))
    assert kept.keys == {}
