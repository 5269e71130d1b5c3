"""The writer over a cloud that the test plays: what fails, what stops the others, and what is tried again."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from services.cloud.journal import EventKind
from services.cloud.routes import Change, Cloud, CloudError, Route, Target, Trouble, Verb, View
from services.cloud.routes import Table as RouteTable
from services.cloud.writer import Writer
from services.core.errors import NotYet, Unavailable
from services.core.family import Address
from services.core.leases.lease import Lease, Subnet
from services.core.leases.table import Step, Table, Upserted
from services.core.network import NetworkConfig, parse_network
from services.runtime.events.journal import Journal
from services.runtime.telemetry.health import Health
from tests.virtual_time import run_virtually

AWS = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}')


class PlayedCloud:
    """One table; node N has address 10.99.0.N and target eni-N. `faults` are raised by destination, or `look`."""

    def __init__(self) -> None:
        self.batch = 1
        self.calls: list[int] = []
        """How many changes each call had."""
        self.routes: dict[str, str] = {}
        self.faults: dict[str, CloudError] = {}
        self.partial: dict[str, CloudError] = {}
        """Of these destinations alone, in whatever batch."""
        self.done: list[str] = []
        self.looks = 0

    def look(self, addresses: Collection[Address]) -> View:
        self.looks += 1
        self._fail("look")
        routes = tuple(Route("rtb", ip_network(cidr), target) for cidr, target in self.routes.items())
        targets = {address: Target(f"eni-{int(address) & 255}") for address in addresses}
        return View([RouteTable("rtb", routes, 500)], targets)

    def apply(self, changes: Sequence[Change]) -> Mapping[Change, CloudError]:
        self.calls.append(len(changes))
        for change in changes:
            self._fail(str(change.route.destination))
        failed = {c: self.partial[cidr] for c in changes if (cidr := str(c.route.destination)) in self.partial}
        for change in changes:
            if change in failed:
                continue
            self.done.append(change.text)
            if change.verb is Verb.DELETE:
                del self.routes[str(change.route.destination)]
            else:
                self.routes[str(change.route.destination)] = change.route.target
        return failed

    def command(self, change: Change) -> str:
        return f"cloud {change.verb.value} {change.route.destination}"

    def _fail(self, what: str) -> None:
        if what in self.faults:
            raise self.faults[what]


class Scene:
    """A writer, its leases and its cloud."""

    def __init__(self, state: Path | None = None) -> None:
        self.cloud = PlayedCloud()
        self.leases = Table()
        self.away = ""
        self.journal = Journal()
        self.health = Health()
        self.writer = Writer(
            lambda: (self.leases, self.away), self._make, self.health, self.journal, interval=60, state=state
        )
        self.network(AWS)

    def _make(self, network: NetworkConfig) -> Cloud:
        return self.cloud

    def network(self, network: NetworkConfig) -> None:
        self.leases.fold(Step(network=network, synced=True))

    def join(self, *nodes: int) -> None:
        for n in nodes:
            subnet = Subnet(ip_network(f"10.5.{n}.0/24"), ip_address(f"10.99.0.{n}"))
            self.leases.fold(Step(changes=(Upserted(Lease(f"10.5.{n}.0-24", f"n{n}", (subnet,))),)))

    def leave(self, n: int) -> None:
        del self.leases.leases[f"10.5.{n}.0-24"]

    async def sync(self, *, dry_run: bool = False, remove: bool = False) -> list[str]:
        return await self.writer.sync(dry_run=dry_run, remove=remove)

    def is_paused(self) -> bool:
        return self.writer.is_paused

    def told(self, kind: EventKind) -> list[str]:
        return [entry.event.what for entry in self.journal.after(0)[0] if entry.event.kind is kind]


ROUTES = {"10.5.1.0/24": "eni-1", "10.5.2.0/24": "eni-2"}


async def test_a_dry_run_says_the_commands_and_changes_nothing() -> None:
    scene = Scene()
    scene.join(1, 2)
    assert await scene.sync(dry_run=True) == ["cloud create 10.5.1.0/24", "cloud create 10.5.2.0/24"]
    assert scene.cloud.routes == {}
    assert await scene.sync() == ["cloud create 10.5.1.0/24", "cloud create 10.5.2.0/24"]
    assert scene.cloud.routes == ROUTES
    assert await scene.sync() == []


@pytest.mark.parametrize("trouble", [Trouble.REFUSED, Trouble.CHANGED])
async def test_one_route_that_is_refused_does_not_stop_the_others(trouble: Trouble) -> None:
    scene = Scene()
    scene.join(1, 2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(trouble, "InvalidParameterValue", "no", "write another subnet")
    with pytest.raises(Unavailable, match=r"^1 change of the cloud's routes failed: InvalidParameterValue: no"):
        await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1", "10.5.3.0/24": "eni-3"}
    (row,) = (row for row in scene.writer.rows() if row.problem)
    assert (row.node, row.problem) == ("n2", "InvalidParameterValue: no: write another subnet")


async def test_a_table_that_is_full_takes_no_more_and_gives_what_is_left_over() -> None:
    scene = Scene()
    scene.join(1)
    await scene.sync()
    scene.leave(1)
    scene.join(2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(Trouble.FULL, "RouteLimitExceeded", "full")
    with pytest.raises(Unavailable, match=r"^2 changes of the cloud's routes failed: RouteLimitExceeded"):
        await scene.sync()
    assert scene.cloud.routes == {}, "nothing is created, and what nobody needs is deleted"
    assert {row.node: row.problem for row in scene.writer.rows() if row.node} == dict.fromkeys(
        ("n2", "n3"), "RouteLimitExceeded: full"
    )


async def test_throttling_ends_the_round_and_the_rest_is_done_in_the_next() -> None:
    scene = Scene()
    scene.join(1, 2, 3)
    scene.cloud.faults["10.5.2.0/24"] = CloudError(Trouble.WAIT, "RequestLimitExceeded", "slowly")
    with pytest.raises(CloudError, match=r"^RequestLimitExceeded: slowly$"):
        await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1"}
    scene.cloud.faults.clear()
    assert len(await scene.sync()) == 2


@pytest.mark.parametrize(("trouble", "blocked"), [(Trouble.REFUSED, False), (Trouble.FULL, True)])
async def test_a_batch_that_is_refused_is_tried_one_by_one(trouble: Trouble, blocked: bool) -> None:
    scene = Scene()
    scene.cloud.batch = 4
    scene.join(1, 2, 3, 4, 5, 6)
    scene.cloud.faults["10.5.3.0/24"] = CloudError(trouble, "Code", "no")
    with pytest.raises(Unavailable, match="Code: no"):
        await scene.sync()
    assert scene.cloud.calls == ([4, 1, 1, 1] if blocked else [4, 1, 1, 1, 1, 2])
    left = {3, 4, 5, 6} if blocked else {3}
    assert {row.node for row in scene.writer.rows() if row.problem == "Code: no"} == {f"n{n}" for n in left}
    assert len(scene.cloud.routes) == 6 - len(left)


@pytest.mark.parametrize("trouble", [Trouble.DENIED, Trouble.WAIT])
async def test_a_batch_that_may_not_be_is_not_tried_one_by_one(trouble: Trouble) -> None:
    scene = Scene()
    scene.cloud.batch = 2
    scene.join(1, 2, 3, 4, 5)
    scene.cloud.faults["10.5.3.0/24"] = CloudError(trouble, "Code", "no")
    with pytest.raises(Unavailable, match="Code: no"):
        await scene.sync()
    assert (scene.cloud.calls, len(scene.cloud.routes)) == ([2, 2], 2)


async def test_what_fails_in_a_batch_fails_alone_and_throttling_there_ends_the_round() -> None:
    scene = Scene()
    scene.cloud.batch = 3
    scene.join(1, 2, 3, 4)
    scene.cloud.partial["10.5.2.0/24"] = CloudError(Trouble.REFUSED, "InvalidCIDRBlock", "no")
    with pytest.raises(Unavailable, match="InvalidCIDRBlock"):
        await scene.sync()
    assert (scene.cloud.calls, sorted(scene.cloud.routes)) == ([3, 1], ["10.5.1.0/24", "10.5.3.0/24", "10.5.4.0/24"])
    scene.cloud.partial["10.5.2.0/24"] = CloudError(Trouble.WAIT, "TaskConflict", "later")
    scene.join(5, 6, 7)
    with pytest.raises(CloudError, match=r"^TaskConflict: later$"):
        await scene.sync()
    assert len(scene.cloud.routes) == 5, "the rest of the batch is there, and no other batch was begun"
    assert scene.told(EventKind.ROUTE)[-1] == "create 10.5.6.0/24 via eni-6 in rtb"


async def test_without_the_current_leases_nothing_is_changed() -> None:
    scene = Scene()
    scene.join(1, 2)
    await scene.sync()
    scene.leave(1)
    scene.away = "the lease service does not answer"
    with pytest.raises(NotYet, match="does not answer"):
        await scene.sync()
    assert scene.cloud.routes == ROUTES


async def test_another_backend_has_nothing_to_do_and_leaves_the_routes() -> None:
    scene = Scene()
    scene.join(1)
    await scene.sync()
    scene.network(parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'))
    with pytest.raises(NotYet, match=r"^backend vxlan has no routes in a cloud"):
        await scene.sync()
    assert scene.cloud.routes == {"10.5.1.0/24": "eni-1"}


async def test_teardown_removes_ours_alone_and_pauses() -> None:
    scene = Scene()
    scene.join(1, 2)
    await scene.sync()
    scene.cloud.routes |= {"10.5.9.0/24": "eni-x", "0.0.0.0/0": "igw"}
    assert await scene.sync(remove=True, dry_run=True) == ["cloud delete 10.5.1.0/24", "cloud delete 10.5.2.0/24"]
    assert not scene.is_paused()
    await scene.sync(remove=True)
    assert scene.cloud.routes == {"10.5.9.0/24": "eni-x", "0.0.0.0/0": "igw"}
    assert scene.is_paused()
    await scene.sync()
    assert not scene.is_paused()
    assert scene.told(EventKind.TEARDOWN) == ["routes removed"]


async def test_a_teardown_removes_the_routes_of_the_backend_before_and_of_a_process_just_started() -> None:
    scene = Scene()
    scene.join(1, 2)
    scene.cloud.routes = dict(ROUTES)
    await scene.sync(remove=True, dry_run=True)
    assert [row.problem for row in scene.writer.rows()] == ["", ""], "a dry run leaves the status"
    scene.network(parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'))
    await scene.sync(remove=True)
    assert scene.cloud.routes == {}


async def test_a_teardown_that_cannot_see_the_routes_does_not_pause() -> None:
    scene = Scene()
    scene.join(1)
    scene.cloud.faults["look"] = CloudError(Trouble.WAIT, "RequestLimitExceeded", "slowly")
    with pytest.raises(CloudError, match="RequestLimitExceeded"):
        await scene.sync(remove=True)
    assert not scene.is_paused()


async def test_routes_of_a_table_that_is_not_looked_at_stay_ours(tmp_path: Path) -> None:
    (tmp_path / "cloud.routes").write_text(json.dumps([["other", "10.5.7.0/24", "eni-7"]]))
    scene = Scene(tmp_path / "cloud.routes")
    scene.join(1)
    await scene.sync()
    assert json.loads((tmp_path / "cloud.routes").read_text()) == [
        ["other", "10.5.7.0/24", "eni-7"],
        ["rtb", "10.5.1.0/24", "eni-1"],
    ]


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are carried out at once: virtual time does not wait for threads."""

    async def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", call)


async def _an_hour(scene: Scene) -> None:
    """With a change of a lease every second."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(scene.writer.run())
        for _ in range(3600):
            await asyncio.sleep(1)
            scene.writer.notice()
        running.cancel()


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ExpiredToken"])
def test_a_cloud_that_refuses_everything_is_asked_ever_more_rarely_and_told_of_once(code: str) -> None:
    async def hour() -> None:
        scene = Scene()
        scene.join(1)
        scene.cloud.faults["look"] = CloudError(
            Trouble.WAIT if code == "RequestLimitExceeded" else Trouble.DENIED, code, "no"
        )
        await _an_hour(scene)
        assert 60 <= scene.cloud.looks < 150
        assert scene.told(EventKind.FAILURE) == [f"{code}: no"]
        assert scene.health.reasons == [f"{code}: no"]
        assert [each.check for each in scene.writer.findings()] == ["cloud-credentials"] * (code == "ExpiredToken")
        scene.cloud.faults.clear()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(scene.writer.run())
            await asyncio.sleep(61)
            running.cancel()
        assert (scene.cloud.routes, scene.health.reasons) == ({"10.5.1.0/24": "eni-1"}, [])
        assert scene.writer.findings() == []

    run_virtually(hour())


@pytest.mark.usefixtures("inline")
def test_a_route_that_is_refused_is_told_of_once_and_holds_no_other_node_up() -> None:
    async def hour() -> None:
        scene = Scene()
        scene.join(1)
        scene.cloud.faults["10.5.1.0/24"] = CloudError(Trouble.FULL, "RouteLimitExceeded", "full")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(scene.writer.run())
            await asyncio.sleep(3600)
            assert scene.cloud.looks < 150
            scene.cloud.faults["10.5.1.0/24"] = CloudError(Trouble.REFUSED, "InvalidParameterValue", "no")
            scene.join(2)
            scene.writer.notice()
            await asyncio.sleep(3)
            assert scene.cloud.routes == {"10.5.2.0/24": "eni-2"}
            running.cancel()
        assert scene.told(EventKind.FAILURE) == ["RouteLimitExceeded: full", "InvalidParameterValue: no"]

    run_virtually(hour())


async def test_what_is_refused_is_found_with_its_check() -> None:
    scene = Scene()
    scene.join(1, 2)
    scene.cloud.faults["10.5.1.0/24"] = CloudError(Trouble.FULL, "RouteLimitExceeded", "full", "raise the quota")
    with pytest.raises(Unavailable):
        await scene.sync()
    assert {(each.check, each.problem, each.cause) for each in scene.writer.findings()} == {
        ("cloud-limit", "A table takes no more routes.", "RouteLimitExceeded: full: raise the quota"),
        *(
            (
                "cloud-route",
                f"Packets to the pods of n{n} (10.5.{n}.0/24) are lost: table rtb.",
                "RouteLimitExceeded: full: raise the quota",
            )
            for n in (1, 2)
        ),
    }


async def test_what_is_ours_is_known_after_a_restart_and_not_without_the_file(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    first = Scene(tmp_path / "state" / "cloud.routes")
    first.join(1, 2)
    await first.sync()
    for state, left in ((tmp_path / "state" / "cloud.routes", {}), (tmp_path / "none", {"10.5.1.0/24": "eni-1"})):
        second = Scene(state)
        second.cloud.routes = dict(ROUTES)
        second.join(2)
        await second.sync()
        assert second.cloud.routes == {**left, "10.5.2.0/24": "eni-2"}


async def test_a_file_that_cannot_be_read_makes_nothing_ours(tmp_path: Path) -> None:
    (tmp_path / "cloud.routes").write_text(json.dumps([1, 2]))
    scene = Scene(tmp_path / "cloud.routes")
    scene.cloud.routes = {"10.5.7.0/24": "eni-7"}
    await scene.sync()
    assert scene.cloud.routes == {"10.5.7.0/24": "eni-7"}
