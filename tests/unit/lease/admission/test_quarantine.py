"""Refused keys: shown to an operator with why and since when, and logged as they come and go."""

from collections.abc import Callable
from ipaddress import ip_network
from itertools import count

from structlog.typing import EventDict

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Upserted
from flannelette.services.lease import metrics
from flannelette.services.lease.admission.lease_filter import LeaseFilter
from flannelette.services.lease.admission.quarantine import Quarantine
from flannelette.services.lease.events import Journal
from flannelette.services.lease.stores.store import Changed, Refusal, Snapshot
from flannelette.services.lease.stores.store import RefusalKind as Kind
from tests.examples.leases import SMALL, by_name


def lease(cidr: str) -> Lease:
    return Lease(cidr.replace("/", "-"), "", (Subnet(ip_network(cidr)),))


A, OUTSIDE, STRAY = lease("10.5.1.0/24"), lease("10.8.1.0/24"), lease("10.9.1.0/24")
BAD = Refusal(Kind.UNREADABLE, "is no lease")


class World:
    """A store's events, taken as the gate does."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        ticks = count(100)
        self.admission = LeaseFilter()
        self.quarantine = Quarantine(clock or (lambda: float(next(ticks))), Journal())
        self.take(Snapshot(by_name(A), SMALL))

    def take(self, event: Snapshot | Changed) -> None:
        self.admission.take(event)
        self.quarantine.take(event, self.admission)

    @property
    def kinds(self) -> dict[str, Kind]:
        return {key: refused.refusal.kind for key, refused in self.quarantine.keys.items()}


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
        {"event": "a key of the store is no longer refused", "log_level": "info", "key": "\\xff", "served": False},
    ]


def test_many_keys_at_once_do_not_flood_the_log(lines: list[EventDict]) -> None:
    world = World()
    world.take(Changed(refused={f"key{n}": "bad" for n in range(1000)}))
    assert len(lines) == 21
    assert lines[-1]["refused"] == 980
    assert len(world.quarantine.keys) == 1000


def test_many_keys_one_by_one_do_not_flood_the_log_either(lines: list[EventDict]) -> None:
    clock = [1000.0]
    world = World(lambda: clock[0])
    for n in range(10_000):
        world.take(Changed(refused={f"key{n}": "bad"}))
    for n in range(10_000):
        world.take(Changed(cleared=frozenset({f"key{n}"})))
    assert len(lines) <= 20 + 15
    assert lines[20] == {
        "event": "and more keys, which ListQuarantine shows",
        "log_level": "warning",
        "refused": 1,
        "first": ["key20"],
    }
    assert lines[-1]["refused"] == 9980
    assert lines[-1]["refused_no_longer"] > 4990
    clock[0] += 60
    world.take(Changed(refused={"late": "bad"}))
    assert lines[-1]["key"] == "late"


def test_the_gauges_say_how_many_of_each_kind() -> None:
    world = World()
    world.take(Changed((Upserted(OUTSIDE), Upserted(STRAY)), refused={"foo": "bad", "bar": "bad"}))
    assert gauges() == {"unreadable": 2, "outside_network": 2}
    world.take(Snapshot(by_name(A), SMALL))
    assert gauges() == {"unreadable": 0, "outside_network": 0}


def gauges() -> dict[str, float]:
    (family,) = metrics.QUARANTINED.collect()
    return {sample.labels["kind"]: sample.value for sample in family.samples}
