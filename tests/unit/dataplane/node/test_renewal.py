"""When the holder renews its lease, whatever clocks and the service do."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from flannelette.services.core.errors import NotFound, Unavailable
from tests.services.renewer import CIDR, DAY, FakeService, Scene, play


def test_a_lease_is_acquired_at_once_and_renewed_at_the_margin() -> None:
    async def script(scene: Scene) -> None:
        assert scene.renewer.lease == replace(scene.service.lease(), expires_at=scene.renewer.lease.expires_at)  # type: ignore[union-attr]  # it is there
        assert scene.renewer.reason == ""
        assert scene.wakes
        await asyncio.sleep(3 * DAY)
        gaps = [b - a for a, b in zip([0.0, *scene.service.renewed], scene.service.renewed, strict=False)]
        assert [round(gap) for gap in gaps] == [82_800, 82_800, 82_800]
        assert len(scene.service.acquired) == 1

    play(script, FakeService())


def test_a_short_lease_is_renewed_halfway() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(31)
        assert [round(time) for time in scene.service.renewed] == [5, 10, 15, 20, 25, 30]

    play(script, FakeService(seconds=10))


def test_a_reservation_is_renewed_every_six_hours_for_the_note_of_who_holds_it() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(DAY + 1)
        assert [round(time / 3600) for time in scene.service.renewed] == [6, 12, 18, 24]
        scene.service.faults = [Unavailable("away")] * 2
        await asyncio.sleep(DAY / 4 + 200)
        assert [round(time - 1.25 * DAY) for time in scene.service.renewed[4:]] == [0, 60, 120]
        assert len(scene.service.acquired) == 1

    play(script, FakeService(seconds=None, reserved=True))


@pytest.mark.parametrize("jumps", [(DAY,), (-DAY,), (3600.0, -2 * DAY), (-3600.0, 30 * DAY, -DAY), (50 * 365 * DAY,)])
def test_a_clock_that_is_set_changes_nothing_of_when_a_lease_is_renewed(jumps: tuple[float, ...]) -> None:
    async def script(scene: Scene) -> None:
        service = scene.service
        for seconds in itertools.accumulate(jumps):
            await asyncio.sleep(1000)
            scene.clock.set_by = service.skew = seconds  # the lease service is on the same machine
            assert scene.renewer.renew_at is not None
            assert 0 <= scene.renewer.renew_at - scene.clock.wall() <= 82_800
        await asyncio.sleep(2 * DAY)
        gaps = [b - a for a, b in zip([0.0, *service.renewed], service.renewed, strict=False)]
        assert [round(gap) for gap in gaps] == [82_800, 82_800]
        assert len(service.acquired) == 1

    play(script, FakeService())


def test_a_machine_that_was_suspended_is_noticed_within_a_minute() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(100)
        assert scene.service.renewed == []
        scene.clock.suspended = DAY
        await asyncio.sleep(61)
        assert len(scene.service.renewed) >= 1

    play(script, FakeService())


def test_renewals_that_fail_until_the_lease_is_over_end_in_acquiring_it_again() -> None:
    async def script(scene: Scene) -> None:
        scene.service.faults = [*[Unavailable("away")] * 8, NotFound("it ran out")]
        await asyncio.sleep(60)
        assert scene.service.acquired[1][1].parts[0].previous == CIDR
        assert scene.renewer.reason == ""
        gaps = [b - a for a, b in zip(scene.service.renewed[:9], scene.service.renewed[1:9], strict=False)]
        assert gaps == sorted(gaps, reverse=True), "the less is left, the sooner"
        assert min(gaps) >= 0.999

    play(script, FakeService(seconds=20))


def test_a_lease_whose_end_only_the_store_knows_is_never_renewed() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(30 * DAY)
        assert (scene.service.renewed, scene.renewer.renew_at) == ([], None)

    play(script, FakeService(seconds=None))


def test_clocks_that_disagree_make_no_hot_loop() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(60)
        assert 30 <= len(scene.service.renewed) <= 60

    play(script, FakeService(seconds=10, skew=-60))


def test_a_renewal_that_fails_is_tried_again_after_a_minute_and_sooner_for_a_short_lease() -> None:
    async def day(scene: Scene) -> None:
        scene.service.faults = [Unavailable("away")] * 3
        await asyncio.sleep(DAY)
        assert [round(t - 82_800) for t in scene.service.renewed] == [0, 60, 120, 180]
        assert (len(scene.service.acquired), scene.renewer.reason) == (1, "")

    async def short(scene: Scene) -> None:
        scene.service.faults = [Unavailable("away")] * 2
        await asyncio.sleep(20)
        assert len(scene.service.renewed) == 3
        assert scene.service.renewed[2] < 20

    play(day, FakeService())
    play(short, FakeService(seconds=20))


def test_a_renewal_of_what_is_gone_acquires_again_asking_for_the_same_subnet() -> None:
    async def script(scene: Scene) -> None:
        scene.service.faults = [NotFound("gone")]
        await asyncio.sleep(DAY)
        assert [round(time) for time in scene.service.times] == [0, 82_800]
        assert scene.service.acquired[1][1].parts[0].previous == CIDR
        assert scene.renewer.reason == ""

    play(script, FakeService())


def test_a_renewal_that_ends_after_the_holder_was_told_to_rest_plans_no_other() -> None:
    async def script(scene: Scene) -> None:
        scene.service.during = scene.renewer.stop
        await asyncio.sleep(DAY)
        assert len(scene.service.renewed) == 1
        assert scene.renewer.renew_at is None

    play(script, FakeService())
