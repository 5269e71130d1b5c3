"""Three hosts in containers, with an etcd: they work, each container may do only what it must, and each may die."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from lab.changes import ChangeWatch
from lab.stream import Stream
from tests.compose.composition import OUTSIDE, Composition
from tests.compose.figures import FIGURES
from tests.pages.document import Section, sections
from tests.pages.reader import Reader
from tests.paths import ROOT
from tests.tools import find_tool

pytestmark = pytest.mark.compose

PAGE = sections(ROOT / "docs/grpcurl.md")
COMPOSE_SECTIONS = [section for section in PAGE if section.needs("docker")]

HOSTS = 3
NUMBERS = range(1, HOSTS + 1)
SERVICES = [f"h{n}-{name}" for name in ("lease", "dataplane", "masq") for n in NUMBERS]
OWNERS = [f"{name}{n}" for name in ("h", "pod") for n in NUMBERS]


@pytest.fixture(scope="module")
def started(directory: Path) -> Iterator[tuple[Composition, float]]:
    """The lab, and when its start began."""
    composition = Composition(HOSTS, directory)
    composition.down()  # of a run that was killed
    start = time.monotonic()
    try:
        composition.up()
        yield composition, start
    finally:
        composition.down()


@pytest.fixture
def composition(started: tuple[Composition, float]) -> Composition:
    return started[0]


def touches(victim: str, source: str, target: str) -> bool:
    """Whether packets from the pod of one host to another, or to the outside, need the victim to be there."""
    return victim.replace("pod", "h") in (source, target)


@asynccontextmanager
async def undisturbed(composition: Composition, victim: str, event: str) -> AsyncIterator[None]:
    """What happens in the block loses no ping where the victim is not needed, and afterwards everything works."""
    with composition.reach() as reaching:
        paths = [path for path in reaching.paths() if not touches(victim, path.source, path.target)]
        async with Stream(paths) as stream:
            await asyncio.sleep(0.2)  # the stream is there before, and afterwards
            start = time.monotonic()
            yield
            await composition.until_well()
            FIGURES.back[event] = time.monotonic() - start
            await asyncio.sleep(0.2)
    FIGURES.pings += stream.sent
    FIGURES.lost += len(stream.lost)
    assert not stream.lost, f"{len(stream.lost)} pings of {stream.sent} were lost"


async def test_pods_reach_each_other_and_the_outside_under_the_right_addresses(
    started: tuple[Composition, float],
) -> None:
    composition, start = started
    await composition.until_well()
    FIGURES.hosts, FIGURES.up_seconds = HOSTS, time.monotonic() - start
    with composition.reach() as reaching:
        matrix, outside = await reaching.matrix(), await reaching.outside()
    assert sum(answer.is_good for answer in matrix.values()) == HOSTS * (HOSTS - 1)
    assert sum(answer.is_good for answer in outside.values()) == HOSTS


def test_no_container_may_do_more_than_is_listed(composition: Composition) -> None:
    containers = composition.containers()
    assert containers.keys() == composition.expected()
    assert [sentence for container in containers.values() for sentence in container.excess()] == []
    FIGURES.within_rights = len(containers)


@pytest.mark.parametrize("section", COMPOSE_SECTIONS, ids=lambda section: section.title)
def test_the_commands_of_the_page_print_what_it_shows(
    composition: Composition, section: Section, tmp_path: Path
) -> None:
    find_tool("grpcurl")
    names = next(block for part in PAGE for block in part.blocks if block.commands.startswith("at="))
    with Reader(
        tmp_path, [Section("", [names]), section], place=composition.copy, environment=composition.environment
    ) as reader:
        reader.read(section)


@pytest.mark.parametrize("host", [f"h{n}" for n in NUMBERS])
def test_each_host_can_be_looked_into(composition: Composition, host: str) -> None:
    assert f"{host} is healthy" in composition.compose("exec", "-T", host, "flannelette", "status")
    status = json.loads(composition.compose("exec", "-T", host, "flannelette", "status", "-o", "json"))
    assert status
    assert "dev flannel.1 proto 77" in composition.compose("exec", "-T", host, "ip", "route")


def test_a_pod_can_ping_without_a_capability_for_it(composition: Composition) -> None:
    assert " 0% packet loss" in composition.compose("exec", "-T", "pod1", "ping", "-c", "1", "10.99.0.3")


def test_logs_of_all_services_stand_side_by_side(composition: Composition) -> None:
    logs = composition.compose("logs")
    assert all(service in logs for service in SERVICES)
    assert "Traceback" not in logs


@pytest.mark.parametrize("victim", SERVICES)
async def test_a_killed_service_is_not_noticed_by_pods_nor_by_the_kernel(
    composition: Composition, victim: str
) -> None:
    with ExitStack() as stack:
        watches = [stack.enter_context(ChangeWatch(namespace)) for namespace in composition.host_namespaces()]
        async with undisturbed(composition, victim, f"{victim} killed"):
            kill(composition, victim)
        assert sum(watch.look() for watch in watches) == 0


@pytest.mark.parametrize("victim", [*OWNERS, OUTSIDE])
async def test_a_killed_owner_of_a_namespace_is_healed_and_the_others_do_not_notice(
    composition: Composition, victim: str
) -> None:
    async with undisturbed(composition, victim, f"{victim} killed"):
        kill(composition, victim)


async def test_a_killed_etcd_is_not_noticed_by_pods(composition: Composition) -> None:
    async with undisturbed(composition, "etcd", "etcd killed"):
        kill(composition, "etcd")


async def test_a_restarted_etcd_is_not_noticed_by_pods(composition: Composition) -> None:
    async with undisturbed(composition, "etcd", "etcd restarted"):
        await asyncio.to_thread(composition.compose, "restart", "etcd")


async def test_a_host_that_is_restarted_takes_its_services_along(composition: Composition) -> None:
    async with undisturbed(composition, "h1", "h1 restarted"):
        await asyncio.to_thread(composition.compose, "restart", "--timeout", "3", "h1")


async def test_the_services_of_a_host_that_is_away_wait_for_it_and_say_so(composition: Composition) -> None:
    async with undisturbed(composition, "h2", "h2 stopped for 3 s"):
        await asyncio.to_thread(composition.compose, "stop", "--timeout", "3", "h2")
        await asyncio.sleep(3)
        dataplane = composition.containers()["h2-dataplane"]
        probe = ("exec", "h2-dataplane", "flannelette-probe", "dataplane")
        with pytest.raises(AssertionError, match="is not ready"):
            composition.compose(probe[0], "-T", *probe[1:])
        assert (
            dataplane.inspected["RestartCount"] == composition.containers()["h2-dataplane"].inspected["RestartCount"]
        )
        await asyncio.to_thread(composition.compose, "start", "h2")


async def test_the_engine_calls_every_service_healthy(composition: Composition) -> None:
    async with asyncio.timeout(180):  # it asks every 30 s, and a loaded machine takes its time to answer
        while any(  # noqa: ASYNC110 - what is waited for happens in the engine
            container.health not in ("", "healthy") for container in composition.containers().values()
        ):
            await asyncio.sleep(1)


def kill(composition: Composition, service: str) -> None:
    """As a crash would: `docker kill` would mean that it shall stay away."""
    os.kill(composition.containers()[service].pid, signal.SIGKILL)
