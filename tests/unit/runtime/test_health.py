"""Readiness as a set of conditions."""

import asyncio
import errno
from collections.abc import Iterator

from flannelette.services.core.conditions import BROKEN, SOON, Condition, found
from flannelette.services.runtime.telemetry.health import Health


def test_it_is_ready_when_no_condition_has_a_reason() -> None:
    health = Health()
    assert health.ready
    health.set("store", "the store is away")
    health.set("network", "no network")
    assert (health.ready, health.reasons) == (False, ["the store is away", "no network"])
    health.set("store")
    assert health.reasons == ["no network"]
    health.set("network")
    assert health.ready


def test_a_stopping_service_is_not_ready_for_good() -> None:
    health = Health()
    health.stop()
    health.set("store")
    assert health.reasons == ["the service is stopping"]


def test_it_stays_in_service_while_only_others_are_away() -> None:
    health, seen = Health(), []
    for condition, reason in (
        ("kernel", "not programmed yet"),
        ("store", "away"),
        ("kernel", ""),  # it has never been ready
        ("store", ""),
        ("store", "away"),
        ("kernel", "a route cannot be set"),  # a fault of its own
        ("kernel", ""),
    ):
        health.set(condition, reason, outage=condition == "store")
        seen.append((health.ready, health.is_in_service))
    no, yes, outage = (False, False), (True, True), (False, True)
    assert seen == [no, no, no, yes, outage, no, outage]
    health.stop()
    assert not health.is_in_service


def test_while_another_service_is_away_only_what_waits_for_it_weighs_less() -> None:
    health = Health()
    health.set("lease service", "away", outage=True)
    health.set("store", "", outage=True)
    for name in ("snapshot", "leases", "own lease", "lease", "inputs", "memory"):
        health.set(name, "waits")
    own = ("kernel", "network", "backend", "subnet file", "CNI configuration", "firewall", "forwarding")
    for name in own:
        health.set(name, "cannot be written")
    weights = {each.code.removeprefix("unready."): each.weight for each in health.unready}
    broken = {name.lower().replace(" ", "-") for name in own}
    assert {name for name, weight in weights.items() if weight is BROKEN} == broken
    assert {weight for name, weight in weights.items() if name not in broken} == {SOON}
    health.set("lease service", outage=True)
    assert {each.weight for each in health.unready if each.code != "unready.memory"} == {BROKEN}


async def test_only_a_change_wakes() -> None:
    health = Health()
    health.set("store", "away")
    await health.changed()
    waiting = asyncio.ensure_future(health.changed())
    health.set("store", "away")
    await asyncio.sleep(0)
    assert not waiting.done()
    health.set("store", "still away")
    await waiting


def test_a_look_that_fails_is_found_and_ends_nothing() -> None:
    def without_descriptors() -> Iterator[Condition]:
        if health.finders:
            raise OSError(errno.EMFILE, "Too many open files")
        yield from ()

    health = Health()
    health.finders += [without_descriptors, lambda: [found("service.state-file", reason="Cannot write")]]
    assert {each.check for each in health.findings} == {"own-checks", "state-file"}
    assert "Too many open files" in "".join(each.cause for each in health.findings)
