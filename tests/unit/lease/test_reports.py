"""The last report of each node: what is believed, what is ignored, what is forgotten."""

import asyncio
from dataclasses import dataclass, field

import pytest

from flannelette.services.core.conditions import Condition
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.progress import FailedLease, Progress
from flannelette.services.core.limits import LONGEST_NAME
from flannelette.services.lease.progress import reports as module
from flannelette.services.lease.progress.reports import MOST_FAILED, NOTHING_YET, NodeProgress, Reports
from flannelette.services.lease.watch.log import ChangeLog, LogEntry

FAILED = FailedLease("10.0.7.0-24", "route 10.0.7.0/24: Network is unreachable")


@dataclass
class Scene:
    """Reports over a history of the epoch `e`, and the time."""

    now: float = 5000.0
    change_log: ChangeLog = field(default_factory=lambda: ChangeLog("e", 100, 1 << 20))

    def __post_init__(self) -> None:
        self.reports = Reports(self.change_log, lambda: self.now, lambda: self.now)
        self.reports.entered()

    def enter(self, count: int = 1) -> None:
        for _ in range(count):
            self.change_log.append(LogEntry(()))
            self.reports.entered()

    def say(self, node: str, cursor: str, *failed: FailedLease) -> bool:
        return self.reports.take(Progress(node, cursor, failed, len(failed)))

    def cursor(self, node: str) -> str:
        report = self.reports.connected[node].report
        return report.progress.cursor if report else ""


def test_the_newest_report_of_a_node_counts() -> None:
    scene = Scene()
    scene.enter(3)
    scene.reports.on_connect("a")
    assert scene.say("a", "e:1")
    assert scene.say("a", "e:3")
    assert scene.say("a", "e:3")
    assert scene.reports.is_converged(3)


@pytest.mark.parametrize("cursor", ["e:1", "other:3", "nonsense", "e:4", "e:99999999999999999999"])
def test_a_report_that_says_nothing_is_ignored(cursor: str) -> None:
    scene = Scene()
    scene.enter(3)
    scene.reports.on_connect("a")
    scene.say("a", "e:2")
    assert not scene.say("a", cursor)
    assert scene.cursor("a") == "e:2"


def test_a_report_of_a_cursor_that_was_compacted_counts_as_far_as_it_goes() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.enter(300)
    assert scene.say("a", "e:5")
    assert scene.reports.connected["a"].position == 5


def test_an_empty_cursor_takes_back_what_was_said() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.say("a", "e:0")
    assert scene.say("a", "")
    assert scene.reports.connected["a"].position == NOTHING_YET


def test_what_a_node_said_before_its_newest_stream_is_not_believed() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.say("a", "e:0")
    scene.reports.on_connect("a")
    assert scene.reports.connected["a"].position == NOTHING_YET
    assert scene.reports.connected == {"a": NodeProgress()}


def test_failed_leases_are_kept_with_their_reasons_and_bounded() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.say("a", "e:0", *[FailedLease(f"lease{n}", "x" * 10_000) for n in range(1000)])
    report = scene.reports.connected["a"].report
    assert report is not None
    assert (len(report.progress.failed), report.progress.failed_count) == (MOST_FAILED, 1000)
    assert len(report.progress.failed[0].reason) == 500
    assert scene.reports.connected["a"].is_failing
    scene.say("a", "e:0")
    assert not any(node.is_failing for node in scene.reports.connected.values())


def test_findings_are_kept_and_bounded_whatever_a_node_sends() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    told = tuple(
        Condition("", (), "y" * 10_000, "z" * 10_000, told=("check", "x" * 10_000, "c")) for _ in range(1000)
    )
    scene.reports.take(Progress("a", "e:0", findings=told, version="v" * 10_000))
    report = scene.reports.connected["a"].report
    assert report is not None
    assert len(report.progress.findings) == 8
    assert max(len(getattr(report.progress.findings[0], name)) for name in ("problem", "cure", "evidence")) == 500
    assert len(report.progress.version) <= LONGEST_NAME


def test_a_node_that_left_is_remembered_for_an_hour() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.say("a", "e:0", FAILED)
    scene.reports.on_disconnect("a")
    assert not any(node.is_failing for node in scene.reports.connected.values())
    assert scene.reports.departed["a"].progress.failed == (FAILED,)
    scene.now += 3599
    assert "a" in scene.reports.departed
    scene.now += 2
    assert not scene.reports.departed


def test_nodes_that_come_back_have_left_no_more() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.say("a", "e:0")
    scene.reports.on_disconnect("a")
    scene.reports.on_connect("a")
    assert not scene.reports.departed


def test_reports_of_nobody_we_know_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_DEPARTED", 3)
    scene = Scene()
    for number in range(10):
        scene.say(f"n{number}", "e:0")
    assert list(scene.reports.departed) == ["n7", "n8", "n9"]


@pytest.mark.parametrize(("nodes", "pause"), [(1, 0.05), (50, 0.05), (1000, 1.0), (5000, 5.0)])
def test_many_nodes_are_asked_to_report_less_often(nodes: int, pause: float) -> None:
    scene = Scene()
    for number in range(nodes):
        scene.reports.on_connect(f"n{number}")
    assert scene.reports.pause == pytest.approx(pause)


async def test_who_waits_for_convergence_is_woken_by_the_last_report() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.reports.on_connect("b")
    waiting = asyncio.create_task(scene.reports.converged(0, 60))
    for node in ("a", "b"):
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.say(node, "e:0")
    await asyncio.wait_for(waiting, 1)


async def test_who_waits_for_convergence_is_woken_when_the_last_laggard_leaves() -> None:
    scene = Scene()
    scene.reports.on_connect("a")
    scene.reports.on_connect("b")
    scene.say("a", "e:0")
    waiting = asyncio.create_task(scene.reports.converged(0, 60))
    await asyncio.sleep(0)
    scene.reports.on_disconnect("b")
    await asyncio.wait_for(waiting, 1)


async def test_a_wait_ends_when_its_time_is_over_or_the_service_stops() -> None:
    scene = Scene()
    await scene.reports.converged(0, 0)
    waiting = asyncio.create_task(scene.reports.converged(0, 60))
    await asyncio.sleep(0)
    scene.reports.notifier.stop(Unavailable("the service is stopping"))
    with pytest.raises(Unavailable, match="stopping"):
        await waiting


def test_thousands_of_nodes_and_changes_cost_little_memory() -> None:
    scene = Scene()
    for number in range(5000):
        scene.reports.on_connect(f"n{number}")
    scene.enter(1000)
    for number in range(5000):
        scene.say(f"n{number}", "e:1000")
    assert scene.reports.is_converged(1000)
