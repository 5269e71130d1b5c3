"""Refused keys: shown to an operator with why and since when, and logged as they come and go."""

from functools import partial
from ipaddress import ip_network

from prometheus_client import REGISTRY
from structlog.typing import EventDict

from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Upserted
from tests.examples.leases import SMALL, by_name
from tests.services.lease import listing
from tests.stores.played import PlayedService


def lease(cidr: str) -> Lease:
    return Lease(cidr.replace("/", "-"), "", (Subnet(ip_network(cidr)),))


A, OUTSIDE, STRAY = lease("10.5.1.0/24"), lease("10.8.1.0/24"), lease("10.9.1.0/24")


class Scene:
    """A lease service whose store has one lease, and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.service = PlayedService(listed=False, now=lambda: self.now)
        self.service.take(listing(by_name(A), SMALL))

    def refuse(self, reason: str, *keys: str) -> None:
        self.service.tells(refused=dict.fromkeys(keys, reason))

    def clear(self, *keys: str) -> None:
        self.service.tells(cleared=frozenset(keys))

    async def count(self) -> int:
        return len((await self.service.call("ListQuarantine")).keys)


async def test_a_key_is_logged_once_when_it_comes_and_once_when_it_goes(lines: list[EventDict]) -> None:
    scene = Scene()
    lines.clear()
    for happens in (partial(scene.refuse, "is no lease"), scene.clear):
        happens("\\xff")
        happens("\\xff")
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


async def test_many_keys_at_once_do_not_flood_the_log(lines: list[EventDict]) -> None:
    scene = Scene()
    lines.clear()
    scene.refuse("bad", *(f"key{n}" for n in range(1000)))
    assert len(lines) == 21
    assert lines[-1]["refused"] == 980
    assert await scene.count() == 1000


async def test_many_keys_one_by_one_do_not_flood_the_log_either(lines: list[EventDict]) -> None:
    scene = Scene()
    lines.clear()
    for n in range(10_000):
        scene.refuse("bad", f"key{n}")
    for n in range(10_000):
        scene.clear(f"key{n}")
    assert len(lines) <= 20 + 15
    assert lines[20] == {
        "event": "and more keys, which ListQuarantine shows",
        "log_level": "warning",
        "refused": 1,
        "first": ["key20"],
    }
    assert lines[-1]["refused"] == 9980
    assert lines[-1]["refused_no_longer"] > 4990
    scene.now += 60
    scene.refuse("bad", "late")
    assert lines[-1]["key"] == "late"


async def test_the_gauges_say_how_many_of_each_kind() -> None:
    scene = Scene()
    scene.service.tells(Upserted(OUTSIDE), Upserted(STRAY), refused={"foo": "bad", "bar": "bad"})
    assert gauges() == {"unreadable": 2, "outside_network": 2}
    scene.service.take(listing(by_name(A), SMALL))
    assert gauges() == {"unreadable": 0, "outside_network": 0}


def gauges() -> dict[str, float]:
    kinds = ("unreadable", "outside_network")
    name = "flannelette_lease_quarantined_keys"
    return {kind: REGISTRY.get_sample_value(name, {"kind": kind}) or 0.0 for kind in kinds}
