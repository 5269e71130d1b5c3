"""How often the lease renewer asks again: at once after a loss, less and less often where it does not help."""

import asyncio
import itertools
from dataclasses import replace

import pytest

from flannelette.services.core.errors import NotYet, Unavailable
from tests.services.renewer import REQUEST, FakeService, Scene, play


def test_a_table_that_comes_late_makes_a_node_ask_again_less_and_less_often() -> None:
    async def script(scene: Scene) -> None:
        for told_by in (10, 30, 90, 270, 300, 300):
            for seconds, reason in ((told_by - 1, ""), (12, "the lease 10.5.27.0-24 was revoked")):
                await asyncio.sleep(seconds if told_by == 10 or reason else seconds - 11)
                scene.renewer.observe(scene.table())
                assert scene.renewer.reason == reason
            await asyncio.sleep(11)  # by then it is acquired again

    play(script, FakeService())


def test_the_first_losses_are_answered_at_once_and_those_that_follow_are_told_and_slow() -> None:
    """A regression test of hole 7."""

    async def script(scene: Scene) -> None:
        lease = scene.service.lease()
        for times in range(1, 4):
            await asyncio.sleep(0.01)
            scene.renewer.hear_of_loss(lease.name)
            assert bool(scene.renewer.contested_key) is (times > 1)
        await asyncio.sleep(0.01)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("", 4)
        fight = scene.renewer.contested_key
        assert fight
        assert fight.problem == "The key of n1 (10.5.27.0-24) was overwritten or deleted 3 times in the last minute."
        scene.renewer.hear_of_loss(lease.name)
        await asyncio.sleep(0.2)
        assert scene.renewer.reason, "now it waits"
        await asyncio.sleep(61)
        assert (scene.renewer.reason, scene.renewer.contested_key) == ("", None)
        scene.renewer.hear_of_loss(lease.name)
        await asyncio.sleep(0.01)
        assert scene.renewer.reason == "", "and that is forgotten after a minute"

    play(script, FakeService())


def test_two_nodes_of_one_name_take_turns_slowly() -> None:
    async def script(scene: Scene) -> None:
        for _ in range(6000):
            lease = scene.renewer.lease
            assert lease is not None
            if not scene.renewer.reason:
                scene.renewer.observe(scene.table(lease))
                scene.renewer.observe(scene.table(replace(lease, backend_type="host-gw")))
            await asyncio.sleep(0.01)
        assert len(scene.service.acquired) <= 20  # in a minute

    play(script, FakeService())


def test_failures_back_off_to_ten_seconds_and_say_why() -> None:
    service = FakeService(faults=[NotYet("no configuration yet")] * 100)

    async def script(scene: Scene) -> None:
        assert scene.renewer.reason == "no configuration yet"
        await asyncio.sleep(120)
        gaps = [b - a for a, b in zip(scene.service.times, scene.service.times[1:], strict=False)]
        assert all(0.25 <= gap <= 10.001 for gap in gaps)
        assert all(gap >= 5 for gap in gaps[6:])
        assert len(scene.wakes) <= 3, "the same reason is said once"
        scene.service.faults.clear()
        await asyncio.sleep(10.1)
        assert scene.renewer.reason == ""

    play(script, service)


def test_after_steady_times_a_new_loss_is_tried_at_short_pauses_again() -> None:
    service = FakeService(faults=[NotYet("no configuration yet")] * 20)

    async def script(scene: Scene) -> None:
        await asyncio.sleep(300)
        assert scene.renewer.reason == ""
        asked = len(service.times)
        service.faults = [Unavailable("away")] * 2
        scene.renewer.invalidate("it does not fit")
        await asyncio.sleep(2)
        assert len(service.times) == asked + 3
        assert scene.renewer.reason == ""

    play(script, service)


def test_a_service_that_waits_for_what_is_missing_is_asked_again_without_a_pause() -> None:
    async def script(scene: Scene) -> None:
        scene.renewer.set_request(REQUEST)
        await asyncio.sleep(99)
        assert scene.renewer.reason == "no podCIDR yet"
        assert scene.service.times == pytest.approx([10.0 * number for number in range(10)], abs=0.1)

    play(script, FakeService(takes=10.0, faults=[NotYet("no podCIDR yet")] * 20))


def test_a_service_that_refuses_at_once_is_asked_less_and_less_often() -> None:
    async def script(scene: Scene) -> None:
        scene.renewer.set_request(REQUEST)
        await asyncio.sleep(100)
        gaps = [after - before for before, after in itertools.pairwise(scene.service.times)]
        assert gaps[0] <= 0.5
        assert all(5 <= gap <= 10 for gap in gaps[6:])

    play(script, FakeService(faults=[NotYet("no podCIDR yet")] * 40))
