"""The lease renewer against a lease service that a test plays, in virtual time."""

import asyncio
from dataclasses import replace
from ipaddress import IPv4Network

from flannelette.services.core.leases.lease import VxlanData
from flannelette.services.core.leases.table import Table
from tests.examples.leases import SMALL, SMALL_JSON, network
from tests.services.renewer import CIDR, DAY, OTHER, REQUEST, FakeService, Scene, play


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


def test_a_lease_that_is_lost_before_the_table_shows_it_is_acquired_again_in_time() -> None:
    """A regression test of hole 7."""

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
    async def acquiring(scene: Scene) -> None:
        scene.service.during = lambda: scene.renewer.set_request(OTHER)
        await asyncio.sleep(4)
        assert [request for _, request in scene.service.acquired] == [REQUEST, OTHER]
        assert scene.renewer.lease is not None
        assert scene.renewer.lease.subnets[0].data == OTHER.parts[0].data
        assert scene.renewer.reason == ""

    async def renewing(scene: Scene) -> None:
        scene.service.during = lambda: scene.renewer.set_request(OTHER)
        await asyncio.sleep(DAY)
        assert scene.service.acquired[-1][1].parts[0].data == OTHER.parts[0].data
        assert scene.renewer.lease is not None
        assert scene.renewer.lease.subnets[0].data == OTHER.parts[0].data

    play(acquiring, FakeService(takes=1))
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
