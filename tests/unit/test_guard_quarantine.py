"""Refused keys: shown to an operator with why and since when, and logged as they come and go."""

from ipaddress import ip_network
from itertools import count

from structlog.typing import EventDict

from services.core.lease import Lease, Subnet
from services.core.table import Removed, Upserted
from services.lease import metrics
from services.lease.guard.admission import Admission
from services.lease.guard.quarantine import Quarantine, Refused
from services.lease.refusal import Kind, Refusal
from services.lease.store import Changed, Snapshot
from tests.lease_examples import SMALL, by_name


def lease(cidr: str) -> Lease:
    return Lease(cidr.replace("/", "-"), "", (Subnet(ip_network(cidr)),))


A, HALF, STRAY = lease("10.5.1.0/24"), lease("10.5.1.0/25"), lease("10.9.1.0/24")
BAD = Refusal(Kind.UNREADABLE, "is no lease")


class World:
    """A store's events, taken as the gate does."""

    def __init__(self) -> None:
        ticks = count(100)
        self.admission = Admission()
        self.quarantine = Quarantine(lambda: float(next(ticks)))
        self.take(Snapshot(by_name(A), SMALL))

    def take(self, event: Snapshot | Changed) -> None:
        self.admission.take(event)
        self.quarantine.take(event, self.admission)

    @property
    def kinds(self) -> dict[str, Kind]:
        return {key: refused.refusal.kind for key, refused in self.quarantine.keys.items()}


def test_a_refused_key_is_kept_with_its_last_reason_and_first_time() -> None:
    world = World()
    world.take(Changed(refused={"foo": "was no lease"}))
    world.take(Changed(refused={"foo": "is no lease"}))
    world.take(Changed((Upserted(A),)))
    assert world.quarantine.keys == {"foo": Refused(BAD, 100.0)}


def test_a_snapshot_says_all_that_is_refused() -> None:
    world = World()
    world.take(Changed(refused={"foo": "bad", "bar": "bad"}))
    world.take(Snapshot(by_name(A, HALF), SMALL, refused={"bar": "bad", "new": "bad"}))
    assert world.kinds == {"bar": Kind.UNREADABLE, HALF.name: Kind.OVERLAP, "new": Kind.UNREADABLE}
    assert world.quarantine.keys["bar"].first_seen < world.quarantine.keys["new"].first_seen


def test_a_key_leaves_when_the_store_clears_it_or_nothing_is_in_its_way() -> None:
    world = World()
    world.take(Changed((Upserted(HALF), Upserted(STRAY)), refused={"foo": "bad"}))
    assert world.kinds == {"foo": Kind.UNREADABLE, HALF.name: Kind.OVERLAP, STRAY.name: Kind.OUTSIDE_NETWORK}
    world.take(Changed((Removed(A.name),), cleared=frozenset({"foo"})))
    assert world.kinds == {STRAY.name: Kind.OUTSIDE_NETWORK}
    world.take(Changed((Removed(STRAY.name),)))
    assert world.kinds == {}


def test_a_lease_whose_value_became_bad_is_refused_for_that() -> None:
    world = World()
    world.take(Changed((Upserted(HALF),)))
    world.take(Changed(refused={HALF.name: "is no lease"}))
    assert world.quarantine.keys[HALF.name].refusal == BAD
    world.take(Changed((Upserted(HALF),), cleared=frozenset({HALF.name})))
    assert world.kinds == {HALF.name: Kind.OVERLAP}


def test_a_key_is_logged_once_when_it_comes_and_once_when_it_goes(lines: list[EventDict]) -> None:
    world = World()
    world.take(Changed(refused={"\\xff": "is no lease"}))
    world.take(Changed(refused={"\\xff": "is no lease"}))
    world.take(Changed(cleared=frozenset({"\\xff"})))
    world.take(Changed(cleared=frozenset({"\\xff"})))
    assert lines == [
        {
            "event": "a key of the store is refused",
            "log_level": "warning",
            "key": "\\xff",
            "kind": "unreadable",
            "reason": "is no lease",
        },
        {"event": "a key of the store is refused no longer", "log_level": "info", "key": "\\xff", "served": False},
    ]


def test_many_keys_at_once_do_not_flood_the_log(lines: list[EventDict]) -> None:
    world = World()
    world.take(Changed(refused={f"key{n}": "bad" for n in range(1000)}))
    assert len(lines) == 21
    assert lines[-1]["refused"] == 980
    assert len(world.quarantine.keys) == 1000


def test_the_gauges_say_how_many_of_each_kind() -> None:
    world = World()
    world.take(Changed((Upserted(HALF), Upserted(STRAY)), refused={"foo": "bad", "bar": "bad"}))
    assert gauges() == {"unreadable": 2, "overlap": 1, "outside_network": 1}
    world.take(Snapshot(by_name(A), SMALL))
    assert gauges() == {"unreadable": 0, "overlap": 0, "outside_network": 0}


def gauges() -> dict[str, float]:
    (family,) = metrics.QUARANTINED.collect()
    return {sample.labels["kind"]: sample.value for sample in family.samples}
