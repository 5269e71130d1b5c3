"""The holder against a lease service that a test plays, in virtual time."""

import asyncio
import itertools
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from services.core.errors import NotYet, Unavailable
from services.core.leases.lease import VxlanData
from services.core.leases.table import Table
from services.dataplane.events.journal import Journal
from services.dataplane.node.lease_renewer import LeaseRenewer
from tests.examples.leases import SMALL, SMALL_JSON, network
from tests.services.renewer import CIDR, DAY, OTHER, REQUEST, FakeService, Scene, play
from tests.virtual_time import now, run_virtually


def test_a_lease_that_the_store_has_lost_is_acquired_again_although_the_table_has_it() -> None:
    async def script(scene: Scene) -> None:
        lease = scene.service.lease()
        await asyncio.sleep(60)
        scene.renewer.hear_of_loss("10.5.99.0-24")
        assert scene.renewer.reason == ""
        scene.renewer.hear_of_loss(lease.name)
        scene.renewer.hear_of_loss(lease.name)
        assert scene.renewer.reason.startswith("the store has lost the lease 10.5.27.0-24, or another program")
        await asyncio.sleep(1)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("", 2)
        assert scene.service.acquired[-1][1].parts[0].previous == CIDR

    play(script, FakeService())


def test_a_loss_that_is_told_before_the_answer_that_brings_the_lease_is_a_loss() -> None:
    async def script(scene: Scene) -> None:
        for asked in (1, 2):  # also while it is acquired again
            scene.service.during = lambda: scene.renewer.hear_of_loss("10.5.27.0-24")
            await asyncio.sleep(0.5)
            assert scene.renewer.reason.startswith("the store has lost the lease 10.5.27.0-24")
            assert len(scene.service.acquired) == asked + 1
        scene.service.during = None
        await asyncio.sleep(60)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("", 3)

    play(script, FakeService(takes=0.5))


def test_an_undone_change_of_the_network_asks_for_the_old_subnet_again() -> None:
    other = network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')

    async def script(scene: Scene) -> None:
        old = scene.renewer.lease
        assert old is not None
        scene.service.cidr = IPv4Network("10.6.3.0/24")
        for there in (other, SMALL, other):
            await asyncio.sleep(100)
            scene.renewer.set_request(REQUEST, there)
            scene.renewer.invalidate("it does not fit any more")
            await asyncio.sleep(0.01)
        wished = [request.parts[0].previous for _, request in scene.service.acquired]
        assert wished == [None, None, CIDR, IPv4Network("10.6.3.0/24")]

    play(script, FakeService())


def test_the_old_subnet_is_asked_for_by_the_network_that_the_table_tells() -> None:
    async def script(scene: Scene) -> None:
        there = replace(scene.table(scene.service.lease()), network=network(SMALL_JSON.replace("10.5.", "10.6.")))
        scene.renewer.set_request(REQUEST, there.network)
        scene.renewer.observe(there)
        scene.renewer.observe(replace(there, network=SMALL))  # put back; nothing else is wanted
        scene.renewer.invalidate("an operator renumbers the node")
        await asyncio.sleep(10)
        assert scene.service.acquired[-1][1].parts[0].previous == CIDR

    play(script, FakeService())


def test_a_revocation_is_answered_by_acquiring_again() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(5)
        lease = scene.renewer.lease
        assert lease is not None
        scene.renewer.observe(scene.table())  # the table lags behind: that is no revocation
        scene.renewer.observe(scene.table(lease))
        await asyncio.sleep(100)
        assert len(scene.service.acquired) == 1
        scene.renewer.observe(scene.table())
        assert scene.renewer.reason == "the lease 10.5.27.0-24 was revoked"
        assert scene.renewer.lease == lease, "it stays in force"
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2
        assert scene.service.acquired[1][1].parts[0].previous == CIDR
        for _ in range(100):  # and the table lags behind again
            scene.renewer.observe(scene.table())
            await asyncio.sleep(0.01)
        assert len(scene.service.acquired) == 2

    play(script, FakeService())


def test_a_table_that_is_not_synced_says_nothing() -> None:
    async def script(scene: Scene) -> None:
        assert scene.renewer.lease is not None
        scene.renewer.observe(scene.table(scene.renewer.lease))
        scene.renewer.observe(Table())
        assert scene.renewer.reason == ""

    play(script, FakeService())


def test_a_change_by_somebody_else_publishes_ours_again_and_another_time_is_no_change() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(100)
        lease = scene.renewer.lease
        assert lease is not None
        scene.renewer.observe(scene.table(lease))
        scene.renewer.observe(scene.table(replace(lease, expires_at=1.0)))
        assert scene.renewer.reason == ""
        changed = replace(lease, subnets=(replace(lease.subnets[0], data=VxlanData(1, "02:00:00:00:00:09")),))
        scene.renewer.observe(scene.table(changed))
        assert scene.renewer.reason == "the lease 10.5.27.0-24 was changed by another program"
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2

    play(script, FakeService())


def test_hole_07_a_lease_that_is_lost_before_the_table_shows_it_is_acquired_again_in_time() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(9)
        scene.renewer.observe(scene.table())
        assert scene.renewer.reason == ""
        seen = len(scene.wakes)
        await asyncio.sleep(3)
        assert len(scene.wakes) > seen, "the dataplane looks once more"
        scene.renewer.observe(scene.table())
        assert scene.renewer.reason == "the lease 10.5.27.0-24 was revoked"

    play(script, FakeService())


def test_a_table_that_comes_late_makes_a_node_ask_again_less_and_less_often() -> None:
    async def script(scene: Scene) -> None:
        for told_by in (10, 30, 90, 270, 300, 300):
            for seconds, reason in ((told_by - 1, ""), (12, "the lease 10.5.27.0-24 was revoked")):
                await asyncio.sleep(seconds if told_by == 10 or reason else seconds - 11)
                scene.renewer.observe(scene.table())
                assert scene.renewer.reason == reason
            await asyncio.sleep(11)  # by then it is acquired again

    play(script, FakeService())


def test_hole_07_the_first_losses_are_answered_at_once_and_those_that_follow_are_told_and_slow() -> None:
    async def script(scene: Scene) -> None:
        lease = scene.service.lease()
        for times in range(1, 4):
            await asyncio.sleep(0.01)
            scene.renewer.hear_of_loss(lease.name)
            assert bool(scene.renewer.fight) is (times > 1)
        await asyncio.sleep(0.01)
        assert (scene.renewer.reason, len(scene.service.acquired)) == ("", 4)
        fight = scene.renewer.fight
        assert fight
        assert fight.problem == "The key of n1 (10.5.27.0-24) was overwritten or deleted 3 times in the last minute."
        scene.renewer.hear_of_loss(lease.name)
        await asyncio.sleep(0.2)
        assert scene.renewer.reason, "now it waits"
        await asyncio.sleep(61)
        assert (scene.renewer.reason, scene.renewer.fight) == ("", None)
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


def test_a_new_wish_is_published_at_once_also_soon_after_the_last_one() -> None:
    service = FakeService()

    async def script(scene: Scene) -> None:
        for part in (OTHER, REQUEST, OTHER):
            await asyncio.sleep(1)
            scene.renewer.set_request(part)
        await asyncio.sleep(0.1)
        assert [round(time, 1) for time in service.times] == [0, 1, 2, 3]

    play(script, service)


def test_what_is_wanted_while_a_call_is_under_way_is_published_next() -> None:
    service = FakeService()

    async def acquiring(scene: Scene) -> None:
        await asyncio.sleep(2)
        assert [request for _, request in service.acquired] == [REQUEST, OTHER]
        assert scene.renewer.lease is not None
        assert scene.renewer.lease.subnets[0].data == OTHER.parts[0].data
        assert scene.renewer.reason == ""

    async def renewing(scene: Scene) -> None:
        scene.service.during = lambda: scene.renewer.set_request(OTHER)
        await asyncio.sleep(DAY)
        assert scene.service.acquired[-1][1].parts[0].data == OTHER.parts[0].data
        assert scene.renewer.lease is not None
        assert scene.renewer.lease.subnets[0].data == OTHER.parts[0].data

    async def main() -> None:
        holder = LeaseRenewer(service, 3600, lambda: None, Journal(), now, now)
        service.during = lambda: holder.set_request(OTHER)
        task = asyncio.create_task(holder.run())
        holder.set_request(REQUEST)
        await acquiring(Scene(service, holder, []))
        task.cancel()

    run_virtually(main())
    play(renewing, FakeService())


def test_the_same_wish_again_changes_nothing_and_a_lease_that_does_not_fit_is_lost_once() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(100)
        scene.renewer.set_request(replace(REQUEST))
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 1
        scene.renewer.invalidate("it does not fit")
        scene.renewer.invalidate("it does not fit at all")
        assert scene.renewer.reason == "it does not fit"
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2

    play(script, FakeService())


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
