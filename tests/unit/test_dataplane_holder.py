"""The holder against a lease service that a test plays, in virtual time."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, ip_address
from typing import Any

import pytest

from services.core.errors import FlanneletteError, NotFound, NotYet, Unavailable
from services.core.lease import Lease, LeaseRequest, Subnet, VxlanData, Wish, lease_key
from services.core.table import Table
from services.dataplane.holder import Holder
from services.dataplane.journal import Journal
from tests.lease_examples import SMALL, network
from tests.virtual_time import now, run_virtually

DAY = 86_400.0
REQUEST = LeaseRequest("n1", "vxlan", (Wish(ip_address("10.99.0.11"), VxlanData(1, "02:00:00:00:00:01")),))
OTHER = replace(REQUEST, wishes=(replace(REQUEST.wishes[0], data=VxlanData(1, "02:00:00:00:00:02")),))
CIDR = IPv4Network("10.5.27.0/24")


@dataclass
class FakeService:
    """Gives 10.5.27.0/24 for `seconds`, unless it has a fault; notes when it was asked for what."""

    seconds: float | None = DAY
    faults: list[FlanneletteError] = field(default_factory=list)
    """Of the next calls."""
    acquired: list[tuple[float, LeaseRequest]] = field(default_factory=list)
    renewed: list[float] = field(default_factory=list)
    cidr: IPv4Network = CIDR
    skew: float = 0.0
    reserved: bool = False
    takes: float = 0.0
    """Seconds until it answers."""
    during: Callable[[], None] | None = None
    """Happens while a call is under way."""

    async def acquire(self, request: LeaseRequest) -> Lease:
        self.acquired.append((now(), request))
        await self._answer()
        return self.lease(request)

    async def renew(self, name: str) -> Lease:
        self.renewed.append(now())
        await self._answer()
        return self.lease(self.acquired[-1][1])

    def lease(self, request: LeaseRequest = REQUEST) -> Lease:
        wish = request.wishes[0]
        expires_at = None if self.seconds is None else now() + self.seconds + self.skew
        part = Subnet(self.cidr, wish.public_address, wish.data)
        return Lease(lease_key([self.cidr]), "n1", (part,), "vxlan", expires_at, self.reserved)

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.acquired]

    async def _answer(self) -> None:
        await asyncio.sleep(self.takes)
        if self.during:
            self.during()
        if self.faults:
            raise self.faults.pop(0)


@dataclass
class Scene:
    service: FakeService
    holder: Holder
    wakes: list[float]

    def table(self, *leases: Lease) -> Table:
        return Table({lease.name: lease for lease in leases}, synced=True)


def play(script: Callable[[Scene], Coroutine[Any, Any, None]], service: FakeService, margin: float = 3600.0) -> None:
    """Runs the script beside a holder that wants REQUEST."""

    async def main() -> None:
        wakes: list[float] = []
        holder = Holder(service, margin, lambda: wakes.append(now()), Journal(), now, now)
        task = asyncio.create_task(holder.run())
        try:
            await asyncio.sleep(0.001)
            assert service.acquired == []
            holder.want(REQUEST)
            await asyncio.sleep(0.001)
            await script(Scene(service, holder, wakes))
            assert not task.done()
        finally:
            task.cancel()

    run_virtually(main())


def test_a_lease_is_acquired_at_once_and_renewed_at_the_margin() -> None:
    async def script(scene: Scene) -> None:
        assert scene.holder.lease == replace(scene.service.lease(), expires_at=scene.holder.lease.expires_at)  # type: ignore[union-attr]  # it is there
        assert scene.holder.reason == ""
        assert scene.wakes
        await asyncio.sleep(3 * DAY)
        gaps = [b - a for a, b in zip([0.0, *scene.service.renewed], scene.service.renewed, strict=False)]
        assert [round(gap) for gap in gaps] == [82_800, 82_800, 82_800]
        assert len(scene.service.acquired) == 1

    play(script, FakeService())


def test_a_lease_that_the_store_has_lost_is_acquired_again_although_the_table_has_it() -> None:
    async def script(scene: Scene) -> None:
        lease = scene.service.lease()
        await asyncio.sleep(60)
        scene.holder.hear_of_loss("10.5.99.0-24")
        assert scene.holder.reason == ""
        scene.holder.hear_of_loss(lease.name)
        scene.holder.hear_of_loss(lease.name)
        assert scene.holder.reason == "the store has lost the lease 10.5.27.0-24"
        await asyncio.sleep(1)
        assert (scene.holder.reason, len(scene.service.acquired)) == ("", 2)
        assert scene.service.acquired[-1][1].wishes[0].previous == CIDR

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
    service, jump = FakeService(), 0.0

    async def main() -> None:
        nonlocal jump
        holder = Holder(service, 3600, lambda: None, Journal(), lambda: now() + jump, now)
        task = asyncio.create_task(holder.run())
        holder.want(REQUEST)
        for seconds in itertools.accumulate(jumps):
            await asyncio.sleep(1000)
            jump = service.skew = seconds  # the lease service is on the same machine
            assert holder.renew_at is not None
            assert 0 <= holder.renew_at - (now() + jump) <= 82_800
        await asyncio.sleep(2 * DAY)
        gaps = [b - a for a, b in zip([0.0, *service.renewed], service.renewed, strict=False)]
        assert [round(gap) for gap in gaps] == [82_800, 82_800]
        assert len(service.acquired) == 1
        task.cancel()

    run_virtually(main())


def test_a_machine_that_was_suspended_is_noticed_within_a_minute() -> None:
    service, jump = FakeService(), 0.0

    async def main() -> None:
        nonlocal jump
        holder = Holder(service, 3600, lambda: None, Journal(), lambda: now() + jump, lambda: now() + jump)
        task = asyncio.create_task(holder.run())
        holder.want(REQUEST)
        await asyncio.sleep(100)
        assert service.renewed == []
        jump = DAY  # the machine was suspended
        await asyncio.sleep(61)
        assert len(service.renewed) >= 1
        task.cancel()

    run_virtually(main())


def test_renewals_that_fail_until_the_lease_is_over_end_in_acquiring_it_again() -> None:
    async def script(scene: Scene) -> None:
        scene.service.faults = [*[Unavailable("away")] * 8, NotFound("it ran out")]
        await asyncio.sleep(60)
        assert scene.service.acquired[1][1].wishes[0].previous == CIDR
        assert scene.holder.reason == ""
        gaps = [b - a for a, b in zip(scene.service.renewed[:9], scene.service.renewed[1:9], strict=False)]
        assert gaps == sorted(gaps, reverse=True), "the less is left, the sooner"
        assert min(gaps) >= 0.999

    play(script, FakeService(seconds=20))


def test_a_lease_whose_end_only_the_store_knows_is_never_renewed() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(30 * DAY)
        assert (scene.service.renewed, scene.holder.renew_at) == ([], None)

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
        assert (len(scene.service.acquired), scene.holder.reason) == (1, "")

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
        assert scene.service.acquired[1][1].wishes[0].previous == CIDR
        assert scene.holder.reason == ""

    play(script, FakeService())


def test_an_undone_change_of_the_network_asks_for_the_old_subnet_again() -> None:
    other = network('{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}')

    async def script(scene: Scene) -> None:
        old = scene.holder.lease
        assert old is not None
        scene.service.cidr = IPv4Network("10.6.3.0/24")
        for there in (other, SMALL, other):
            await asyncio.sleep(100)
            scene.holder.want(REQUEST, there)
            scene.holder.lose("it does not fit any more")
            await asyncio.sleep(0.01)
        wished = [request.wishes[0].previous for _, request in scene.service.acquired]
        assert wished == [None, None, CIDR, IPv4Network("10.6.3.0/24")]

    play(script, FakeService())


def test_a_revocation_is_answered_by_acquiring_again() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(100)
        lease = scene.holder.lease
        assert lease is not None
        scene.holder.observe(scene.table())  # the table lags behind: that is no revocation
        scene.holder.observe(scene.table(lease))
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 1
        scene.holder.observe(scene.table())
        assert scene.holder.reason == "the lease 10.5.27.0-24 was revoked"
        assert scene.holder.lease == lease, "it stays in force"
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2
        assert scene.service.acquired[1][1].wishes[0].previous == CIDR
        for _ in range(100):  # and the table lags behind again
            scene.holder.observe(scene.table())
            await asyncio.sleep(0.01)
        assert len(scene.service.acquired) == 2

    play(script, FakeService())


def test_a_table_that_is_not_synced_says_nothing() -> None:
    async def script(scene: Scene) -> None:
        assert scene.holder.lease is not None
        scene.holder.observe(scene.table(scene.holder.lease))
        scene.holder.observe(Table())
        assert scene.holder.reason == ""

    play(script, FakeService())


def test_a_change_by_somebody_else_publishes_ours_again_and_another_time_is_no_change() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(100)
        lease = scene.holder.lease
        assert lease is not None
        scene.holder.observe(scene.table(lease))
        scene.holder.observe(scene.table(replace(lease, expires_at=1.0)))
        assert scene.holder.reason == ""
        changed = replace(lease, subnets=(replace(lease.subnets[0], data=VxlanData(1, "02:00:00:00:00:09")),))
        scene.holder.observe(scene.table(changed))
        assert scene.holder.reason == "the lease 10.5.27.0-24 was changed by somebody else"
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2

    play(script, FakeService())


def test_two_nodes_of_one_name_take_turns_slowly() -> None:
    async def script(scene: Scene) -> None:
        for _ in range(6000):
            lease = scene.holder.lease
            assert lease is not None
            if not scene.holder.reason:
                scene.holder.observe(scene.table(lease))
                scene.holder.observe(scene.table(replace(lease, backend_type="host-gw")))
            await asyncio.sleep(0.01)
        assert len(scene.service.acquired) <= 15  # in a minute

    play(script, FakeService())


def test_failures_back_off_to_ten_seconds_and_say_why() -> None:
    service = FakeService(faults=[NotYet("no configuration yet")] * 100)

    async def script(scene: Scene) -> None:
        assert scene.holder.reason == "no configuration yet"
        await asyncio.sleep(120)
        gaps = [b - a for a, b in zip(scene.service.times, scene.service.times[1:], strict=False)]
        assert all(0.25 <= gap <= 10.001 for gap in gaps)
        assert all(gap >= 5 for gap in gaps[6:])
        assert len(scene.wakes) <= 3, "the same reason is said once"
        scene.service.faults.clear()
        await asyncio.sleep(10.1)
        assert scene.holder.reason == ""

    play(script, service)


def test_after_steady_times_a_new_loss_is_tried_at_short_pauses_again() -> None:
    service = FakeService(faults=[NotYet("no configuration yet")] * 20)

    async def script(scene: Scene) -> None:
        await asyncio.sleep(300)
        assert scene.holder.reason == ""
        asked = len(service.times)
        service.faults = [Unavailable("away")] * 2
        scene.holder.lose("it does not fit")
        await asyncio.sleep(2)
        assert len(service.times) == asked + 3
        assert scene.holder.reason == ""

    play(script, service)


def test_a_new_wish_is_published_at_once_also_soon_after_the_last_one() -> None:
    service = FakeService()

    async def script(scene: Scene) -> None:
        for wish in (OTHER, REQUEST, OTHER):
            await asyncio.sleep(1)
            scene.holder.want(wish)
        await asyncio.sleep(0.1)
        assert [round(time, 1) for time in service.times] == [0, 1, 2, 3]

    play(script, service)


def test_what_is_wanted_while_a_call_is_under_way_is_published_next() -> None:
    service = FakeService()

    async def acquiring(scene: Scene) -> None:
        await asyncio.sleep(2)
        assert [request for _, request in service.acquired] == [REQUEST, OTHER]
        assert scene.holder.lease is not None
        assert scene.holder.lease.subnets[0].data == OTHER.wishes[0].data
        assert scene.holder.reason == ""

    async def renewing(scene: Scene) -> None:
        scene.service.during = lambda: scene.holder.want(OTHER)
        await asyncio.sleep(DAY)
        assert scene.service.acquired[-1][1].wishes[0].data == OTHER.wishes[0].data
        assert scene.holder.lease is not None
        assert scene.holder.lease.subnets[0].data == OTHER.wishes[0].data

    async def main() -> None:
        holder = Holder(service, 3600, lambda: None, Journal(), now, now)
        service.during = lambda: holder.want(OTHER)
        task = asyncio.create_task(holder.run())
        holder.want(REQUEST)
        await acquiring(Scene(service, holder, []))
        task.cancel()

    run_virtually(main())
    play(renewing, FakeService())


def test_the_same_wish_again_changes_nothing_and_a_lease_that_does_not_fit_is_lost_once() -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(100)
        scene.holder.want(replace(REQUEST))
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 1
        scene.holder.lose("it does not fit")
        scene.holder.lose("it does not fit at all")
        assert scene.holder.reason == "it does not fit"
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2

    play(script, FakeService())


def test_a_service_that_waits_for_what_is_missing_is_asked_again_without_a_pause() -> None:
    async def script(scene: Scene) -> None:
        scene.holder.want(REQUEST)
        await asyncio.sleep(99)
        assert scene.holder.reason == "no podCIDR yet"
        assert scene.service.times == pytest.approx([10.0 * number for number in range(10)], abs=0.1)

    play(script, FakeService(takes=10.0, faults=[NotYet("no podCIDR yet")] * 20))


def test_a_service_that_refuses_at_once_is_asked_less_and_less_often() -> None:
    async def script(scene: Scene) -> None:
        scene.holder.want(REQUEST)
        await asyncio.sleep(100)
        gaps = [after - before for before, after in itertools.pairwise(scene.service.times)]
        assert gaps[0] <= 0.5
        assert all(5 <= gap <= 10 for gap in gaps[6:])

    play(script, FakeService(faults=[NotYet("no podCIDR yet")] * 40))


def test_a_holder_at_rest_renews_nothing_and_acquires_again_when_something_is_wanted() -> None:
    async def script(scene: Scene) -> None:
        scene.holder.rest()
        await asyncio.sleep(10 * DAY)
        assert (scene.service.renewed, len(scene.service.acquired)) == ([], 1)
        assert scene.holder.lease is not None
        assert scene.holder.renew_at is None
        scene.holder.want(REQUEST)
        await asyncio.sleep(1)
        assert len(scene.service.acquired) == 2
        assert scene.holder.renew_at is not None

    play(script, FakeService())


@pytest.mark.parametrize("moment", [0.5, 5.0])
def test_a_holder_told_to_rest_while_it_acquires_or_waits_to_try_again_holds_nothing(moment: float) -> None:
    async def script(scene: Scene) -> None:
        await asyncio.sleep(moment)
        scene.holder.rest()
        asked = len(scene.service.acquired)
        await asyncio.sleep(DAY)
        assert (scene.holder.lease, scene.holder.renew_at, len(scene.service.acquired)) == (None, None, asked)

    play(script, FakeService(takes=2, faults=[Unavailable("away")] * 9))


def test_a_renewal_that_ends_after_the_holder_was_told_to_rest_plans_no_other() -> None:
    async def script(scene: Scene) -> None:
        scene.service.during = scene.holder.rest
        await asyncio.sleep(DAY)
        assert len(scene.service.renewed) == 1
        assert scene.holder.renew_at is None

    play(script, FakeService())
