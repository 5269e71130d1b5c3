"""The holder of a node that is torn down or at rest, in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from flannelette.services.core.errors import NotYet, Unavailable
from flannelette.services.core.leases.lease import VxlanData
from tests.services.renewer import DAY, REQUEST, FakeService, Scene, play


def test_a_holder_that_pauses_renews_and_lets_a_lease_go_that_is_gone() -> None:
    async def script(scene: Scene) -> None:
        lease = scene.renewer.lease
        assert lease is not None
        scene.renewer.observe(scene.table(lease))
        scene.renewer.pause()
        await asyncio.sleep(DAY)
        assert (len(scene.service.renewed), scene.renewer.reason) == (1, "")
        changed = replace(lease, subnets=(replace(lease.subnets[0], data=VxlanData(1, "02:00:00:00:00:09")),))
        scene.renewer.observe(scene.table(changed))
        assert scene.renewer.reason == "", "it is still this node's"
        scene.renewer.observe(scene.table())
        assert (scene.renewer.lease, scene.renewer.renew_at) == (None, None)
        assert scene.renewer.reason == "the lease 10.5.27.0-24 was revoked"
        await asyncio.sleep(DAY)
        assert len(scene.service.acquired) == 1
        scene.renewer.set_request(REQUEST)
        await asyncio.sleep(1)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("", 2)
        scene.renewer.observe(scene.table(scene.service.lease()))
        scene.renewer.observe(scene.table())
        await asyncio.sleep(60)
        assert len(scene.service.acquired) == 3, "the pause has ended"

    play(script, FakeService())


@pytest.mark.parametrize("gone", [True, False])
def test_a_holder_that_pauses_hears_of_a_loss_and_wants_again_whatever_it_has(gone: bool) -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(60)
        scene.renewer.pause()
        if gone:
            scene.renewer.hear_of_loss("10.5.27.0-24")
            assert scene.renewer.lease is None
        scene.renewer.set_request(REQUEST)
        await asyncio.sleep(60)
        assert len(scene.service.acquired) == 1 + gone
        scene.renewer.hear_of_loss("10.5.27.0-24")
        await asyncio.sleep(60)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("", 2 + gone)

    play(script, FakeService())


def test_a_holder_that_pauses_without_a_lease_asks_for_none() -> None:
    async def script(scene: Scene) -> None:
        scene.renewer.pause()
        await asyncio.sleep(11)  # a call or a pause before one may be under way
        asked = len(scene.service.times)
        scene.service.faults.clear()
        await asyncio.sleep(3600)
        assert (scene.renewer.lease, len(scene.service.times)) == (None, asked)
        scene.renewer.set_request(REQUEST)
        await asyncio.sleep(1)
        assert (scene.renewer.reason, len(scene.service.times)) == ("", asked + 1), "the same wish ends the pause"

    play(script, FakeService(faults=[NotYet("no configuration yet")] * 10))


def test_a_lease_that_is_released_while_it_is_lost_is_not_taken_again_in_a_pause() -> None:
    async def script(scene: Scene) -> None:
        scene.renewer.invalidate("it does not fit")  # soon after the last one: it is sought after a short while only
        await asyncio.sleep(0.1)
        scene.renewer.pause()
        await asyncio.sleep(3600)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("it does not fit", 1)
        scene.renewer.set_request(REQUEST)
        await asyncio.sleep(1)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("", 2)

    play(script, FakeService())


def test_a_holder_at_rest_renews_nothing_and_acquires_again_when_something_is_wanted() -> None:
    async def script(scene: Scene) -> None:
        scene.renewer.stop()
        await asyncio.sleep(10 * DAY)
        assert (scene.service.renewed, len(scene.service.acquired)) == ([], 1)
        assert scene.renewer.lease is not None
        assert scene.renewer.renew_at is None
        scene.renewer.set_request(REQUEST)
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2
        assert scene.renewer.renew_at is not None

    play(script, FakeService())


@pytest.mark.parametrize("moment", [0.5, 5.0])
def test_a_holder_told_to_rest_while_it_acquires_or_waits_to_try_again_holds_nothing(moment: float) -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(moment)
        scene.renewer.stop()
        asked = len(scene.service.acquired)
        await asyncio.sleep(DAY)
        assert (scene.renewer.lease, scene.renewer.renew_at, len(scene.service.acquired)) == (None, None, asked)

    play(script, FakeService(takes=2, faults=[Unavailable("away")] * 9))
