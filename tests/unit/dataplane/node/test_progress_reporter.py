"""The reporter against a lease service that a test plays, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from structlog.testing import capture_logs

from flannelette.services.core.errors import FlanneletteError, Forbidden, NotImplementedYet, Unavailable
from flannelette.services.core.leases.lease import FailedLease, Progress
from flannelette.services.dataplane.controller import Reporter
from tests.virtual_time import now, run_virtually


@dataclass
class FakeService:
    """Notes when it was told what; each call takes `seconds`."""

    pause: float = 0.05
    seconds: float = 0.0
    faults: list[FlanneletteError] = field(default_factory=list)
    told: list[tuple[float, str]] = field(default_factory=list)
    under_way: int = 0

    async def report(self, progress: Progress) -> float:
        assert not self.under_way, "never more than one call at a time"
        self.under_way += 1
        try:
            self.told.append((round(now(), 3), progress.cursor))
            await asyncio.sleep(self.seconds)
            if self.faults:
                raise self.faults.pop(0)
            return self.pause
        finally:
            self.under_way -= 1

    @property
    def cursors(self) -> list[str]:
        return [cursor for _, cursor in self.told]


def at(cursor: str, *failed: FailedLease) -> Progress:
    return Progress("n1", cursor, failed, len(failed))


Script = Callable[[Reporter, FakeService], Coroutine[Any, Any, None]]


def play(script: Script, service: FakeService) -> None:
    async def main() -> None:
        reporter = Reporter(service)
        job = asyncio.create_task(reporter.run())
        try:
            await script(reporter, service)
            assert not job.done()
        finally:
            job.cancel()

    run_virtually(main())


def test_news_are_told_at_once_and_the_same_is_not_told_again() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        reporter.tell(None, 1)
        await asyncio.sleep(10)
        reporter.tell(at("e:1"), 1)
        await asyncio.sleep(10)
        reporter.tell(at("e:1"), 1)
        await asyncio.sleep(10)
        assert service.told == [(10.0, "e:1")]

    play(script, FakeService())


def test_a_burst_is_told_by_its_first_and_its_last_and_at_most_twenty_times_a_second() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        for number in range(1000):
            reporter.tell(at(f"e:{number}"), 1)
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        assert len(service.told) <= 21
        assert service.cursors[0] == "e:0"
        assert service.cursors[-1] == "e:999"

    play(script, FakeService())


def test_while_a_call_is_under_way_news_wait_and_only_the_last_is_told() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        for number in range(4):
            reporter.tell(at(f"e:{number}"), 1)
            await asyncio.sleep(0.5)
        await asyncio.sleep(10)
        assert service.cursors == ["e:0", "e:3"]

    play(script, FakeService(seconds=2))


def test_the_service_says_how_long_to_wait_on_average_up_to_a_minute() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        for number in range(1000):
            reporter.tell(at(f"e:{number}"), 1)
            await asyncio.sleep(1)
        pauses = [later - earlier for (earlier, _), (later, _) in pairwise(service.told)]
        longest = min(service.pause, 60)
        assert all(longest / 2 <= pause <= 1.5 * longest + 1 for pause in pauses)
        assert len(set(pauses)) > 5, "with jitter"

    play(script, FakeService(pause=10))
    play(script, FakeService(pause=9999))


def test_of_many_nodes_each_waits_a_while_after_a_quiet_time_and_tells_what_is_true_then() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        reporter.tell(at("e:0"), 1)
        await asyncio.sleep(1000)
        reporter.tell(at("e:1"), 1)
        await asyncio.sleep(0)
        reporter.tell(at("e:2"), 1)
        await asyncio.sleep(1000)
        assert service.cursors == ["e:0", "e:2"]
        assert 1000 < service.told[1][0] < 1005

    play(script, FakeService(pause=5))


def test_a_lease_that_fails_or_recovers_is_news() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        for failed in ([], [FailedLease("x", "why")], [FailedLease("x", "another why")], []):
            reporter.tell(at("e:0", *failed), 1)
            await asyncio.sleep(1)
        assert len(service.told) == 4

    play(script, FakeService())


def test_a_new_stream_is_told_everything_again_and_a_broken_one_nothing() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        reporter.tell(at("e:0"), 1)
        await asyncio.sleep(1)
        reporter.tell(at("e:1"), 0)
        await asyncio.sleep(1)
        reporter.tell(at("e:1"), 2)
        await asyncio.sleep(1)
        reporter.tell(at("e:1"), 3)
        await asyncio.sleep(1)
        assert service.told == [(0.0, "e:0"), (2.0, "e:1"), (3.0, "e:1")]

    play(script, FakeService())


def test_a_report_that_fails_is_repeated_with_growing_pauses_and_what_is_true_then() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        with capture_logs() as logs:
            reporter.tell(at("e:0"), 1)
            await asyncio.sleep(1)
            reporter.tell(at("e:9"), 1)
            await asyncio.sleep(200)
        times = [time for time, _ in service.told]
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert len(service.told) == 21
        assert service.cursors[-1] == "e:9"
        assert all(0.05 <= pause <= 10.001 for pause in pauses)
        assert min(pauses[-5:]) >= 5
        assert [entry["reason"] for entry in logs] == ["the API is away", "not yours"], "each reason once"

    play(script, FakeService(faults=[*[Unavailable("the API is away")] * 10, *[Forbidden("not yours")] * 10]))


def test_a_service_of_an_earlier_version_is_asked_once_on_each_stream() -> None:
    async def script(reporter: Reporter, service: FakeService) -> None:
        for number in range(5):
            reporter.tell(at(f"e:{number}"), 1)
            await asyncio.sleep(1)
        assert service.cursors == ["e:0"]
        reporter.tell(at("f:0"), 2)
        await asyncio.sleep(1)
        reporter.tell(at("f:1"), 2)
        await asyncio.sleep(1)
        assert service.cursors == ["e:0", "f:0", "f:1"]

    play(script, FakeService(faults=[NotImplementedYet("not built yet")]))
