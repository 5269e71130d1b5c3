"""The writer over a cloud that the test plays: what is ours, what it waits for, and what it tells."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flannelette.services.cloud import writer
from flannelette.services.cloud.routes import CloudError, Failure
from flannelette.services.cloud.writer import CloudEventKind
from flannelette.services.core.errors import NotYet, Unavailable
from flannelette.services.core.network import parse_network
from flannelette.services.runtime.state import unpack
from flannelette.services.runtime.telemetry.metrics import REGISTRY
from tests.clouds.scene import Scene
from tests.virtual_time import run_virtually

ROUTES = {"10.5.1.0/24": "eni-1", "10.5.2.0/24": "eni-2"}


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[None]:
    """Meanwhile the writer keeps the routes by itself."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(scene.writer.run())
        yield
        task.cancel()


async def test_a_dry_run_says_the_commands_and_changes_nothing() -> None:
    scene = Scene()
    scene.join(1, 2)
    assert await scene.sync(dry_run=True) == ["cloud create 10.5.1.0/24", "cloud create 10.5.2.0/24"]
    assert scene.cloud.routes == {}
    assert await scene.sync() == ["cloud create 10.5.1.0/24", "cloud create 10.5.2.0/24"]
    assert scene.cloud.routes == ROUTES
    assert await scene.sync() == []


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
    assert scene.told(CloudEventKind.TEARDOWN) == ["routes removed"]


async def test_after_a_teardown_nothing_is_told_of_what_failed_before() -> None:
    scene = Scene()
    scene.join(1)
    scene.cloud.faults["10.5.1.0/24"] = CloudError(Failure.FULL, "RouteLimitExceeded", "full")
    async with running(scene):
        while not scene.health.reasons:  # noqa: ASYNC110 - a thread decides
            await asyncio.sleep(0)
        assert await scene.sync(remove=True) == []
        assert REGISTRY.get_sample_value("flannelette_cloud_routes", {"state": "failing"}) == 0
        assert (scene.is_paused(), scene.health.reasons, scene.writer.last.findings()) == (True, [], [])


async def test_a_teardown_removes_the_routes_of_the_backend_before_and_of_a_process_just_started() -> None:
    scene = Scene()
    scene.join(1, 2)
    scene.cloud.routes = dict(ROUTES)
    await scene.sync(remove=True, dry_run=True)
    assert [row.problem for row in scene.writer.last.rows] == ["", ""], "a dry run leaves the status"
    scene.network(parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'))
    await scene.sync(remove=True)
    assert scene.cloud.routes == {}


async def test_a_teardown_that_cannot_see_the_routes_does_not_pause() -> None:
    scene = Scene()
    scene.join(1)
    scene.cloud.faults["look"] = CloudError(Failure.WAIT, "RequestLimitExceeded", "slowly")
    with pytest.raises(CloudError, match="RequestLimitExceeded"):
        await scene.sync(remove=True)
    assert not scene.is_paused()


def kept(path: Path) -> Any:
    """What the file holds."""
    return [record.json() for record in unpack("cloud.routes", path.read_bytes()).records]


async def test_routes_of_a_table_that_is_not_looked_at_stay_ours(tmp_path: Path) -> None:
    (tmp_path / "cloud.routes").write_text(json.dumps([["other", "10.5.7.0/24", "eni-7"]]))
    scene = Scene(tmp_path / "cloud.routes")
    scene.join(1)
    await scene.sync()
    assert kept(tmp_path / "cloud.routes") == [
        ["other", "10.5.7.0/24", "eni-7"],
        ["rtb", "10.5.1.0/24", "eni-1"],
    ]


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are carried out at once: virtual time does not wait for threads."""

    async def call(function: Callable[[], Any]) -> Any:
        return function()

    monkeypatch.setattr(writer, "in_thread", call)


async def _an_hour(scene: Scene) -> None:
    """With a change of a lease every second."""
    async with running(scene):
        for _ in range(3600):
            await asyncio.sleep(1)
            scene.writer.notice()


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ExpiredToken"])
def test_a_cloud_that_refuses_everything_is_asked_ever_more_rarely_and_told_of_once(code: str) -> None:
    async def hour() -> None:
        scene = Scene()
        scene.join(1)
        scene.cloud.faults["look"] = CloudError(
            Failure.WAIT if code == "RequestLimitExceeded" else Failure.DENIED, code, "no"
        )
        await _an_hour(scene)
        assert 60 <= scene.cloud.looks < 150
        assert scene.told(CloudEventKind.FAILURE) == [f"{code}: no"]
        assert scene.health.reasons == [f"{code}: no"]
        assert [each.check for each in scene.writer.last.findings()] == ["cloud-credentials"] * (
            code == "ExpiredToken"
        )
        scene.cloud.faults.clear()
        async with running(scene):
            await asyncio.sleep(61)
        assert (scene.cloud.routes, scene.health.reasons) == ({"10.5.1.0/24": "eni-1"}, [])
        assert scene.writer.last.findings() == []

    run_virtually(hour())


@pytest.mark.usefixtures("inline")
def test_a_route_that_is_refused_is_told_of_once_and_holds_no_other_node_up() -> None:
    async def hour() -> None:
        scene = Scene()
        scene.join(1)
        scene.cloud.faults["10.5.1.0/24"] = CloudError(Failure.FULL, "RouteLimitExceeded", "full")
        async with running(scene):
            await asyncio.sleep(3600)
            assert scene.cloud.looks < 150
            scene.cloud.faults["10.5.1.0/24"] = CloudError(Failure.REFUSED, "InvalidParameterValue", "no")
            scene.join(2)
            scene.writer.notice()
            await asyncio.sleep(3)
            assert scene.cloud.routes == {"10.5.2.0/24": "eni-2"}
        assert scene.told(CloudEventKind.FAILURE) == ["RouteLimitExceeded: full", "InvalidParameterValue: no"]

    run_virtually(hour())


async def test_what_is_refused_is_found_with_its_check() -> None:
    scene = Scene()
    scene.join(1, 2)
    scene.cloud.faults["10.5.1.0/24"] = CloudError(Failure.FULL, "RouteLimitExceeded", "full", "raise the quota")
    with pytest.raises(Unavailable):
        await scene.sync()
    assert {(each.check, each.problem, each.cause) for each in scene.writer.last.findings()} == {
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


async def test_what_is_ours_is_written_as_soon_as_the_disk_takes_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "away" / "cloud.routes")
    scene.join(1)
    await scene.sync()
    (tmp_path / "away").mkdir()
    await scene.sync()
    assert kept(tmp_path / "away" / "cloud.routes") == [["rtb", "10.5.1.0/24", "eni-1"]]


async def test_a_file_that_cannot_be_read_makes_nothing_ours(tmp_path: Path) -> None:
    (tmp_path / "cloud.routes").write_text(json.dumps([1, 2]))
    scene = Scene(tmp_path / "cloud.routes")
    scene.cloud.routes = {"10.5.7.0/24": "eni-7"}
    await scene.sync()
    assert scene.cloud.routes == {"10.5.7.0/24": "eni-7"}
