"""`flannelette watch` as a process, across restarts of the lease service."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run, start
from tests.patience import PATIENCE


class Watch:
    """A running `flannelette watch`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        """The next line, without its time."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            text = (await self.process.stdout.readline()).decode().rstrip("\n")
        return text if text.startswith("{") else text.partition(" ")[2]

    async def end(self) -> tuple[int, str]:
        """Ctrl-C; the exit code and what is on standard error."""
        self.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            _, err = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()


@asynccontextmanager
async def watching(node: FakeNode, *words: str) -> AsyncIterator[Watch]:
    process = await start(node.directory, "watch", *words)
    try:
        yield Watch(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def snapshot(*numbers: int, cursor: str) -> pb.WatchLeasesResponse:
    changes = [pb.Change(upserted=samples.vxlan_lease(number)) for number in numbers]
    return pb.WatchLeasesResponse(reset=True, changes=changes, network=samples.network(), synced=True, cursor=cursor)


def imported(number: int) -> pb.Lease:
    return samples.vxlan_lease(number, name=f"west/10.5.{number}.0-24", cluster="west")


def changed(*leases: pb.Lease, removed: Sequence[str] = (), **more: Any) -> pb.WatchLeasesResponse:
    changes = [pb.Change(upserted=lease) for lease in leases] + [pb.Change(removed=name) for name in removed]
    return pb.WatchLeasesResponse(changes=changes, **more)


def moved() -> pb.Lease:
    lease = samples.vxlan_lease(2, node="h7")
    lease.subnets[0].public_address = "10.99.0.99"
    return lease


def renewed() -> pb.Lease:
    lease = samples.vxlan_lease(2)
    lease.expire_time.FromSeconds(int(time.time()) + 86_400 + 1_800)  # the hour is not full, so that it is not told
    return lease


AWAY = pb.StoreStatus(kind="etcd", error="refused")
UNUSABLE = pb.Lease(name="10.5.4.0-24", subnets=[pb.Subnet(cidr="nonsense", opaque_json="{}")], reserved=True)
TOLD = {
    "the differences of a changed lease": (
        [changed(moved(), synced=True, cursor="e1.3")],
        ["~ 10.5.2.0/24 h7 node h2 -> h7; address 10.99.0.12 -> 10.99.0.99"],
    ),
    "the new time of a renewed one": ([changed(renewed(), synced=True)], ["~ 10.5.2.0/24 h2 expires in 1 d"]),
    "what a removed one was": (
        [changed(removed=["10.5.3.0-24"], synced=True)],
        ["- 10.5.3.0/24 h3 10.99.0.13 vxlan vni 1 c6:d2:32:6f:8f:03"],
    ),
    "changes in their order": (
        [
            changed(removed=["10.5.2.0-24"]),
            changed(samples.vxlan_lease(2)),
            changed(removed=["never-seen"], synced=True),
        ],
        [
            "- 10.5.2.0/24 h2 10.99.0.12 vxlan vni 1 c6:d2:32:6f:8f:02",
            "+ 10.5.2.0/24 h2 10.99.0.12 vxlan vni 1 c6:d2:32:6f:8f:02",
            "- never-seen",
        ],
    ),
    "of a later snapshot what it changes, and what is gone at its end": (
        [
            changed(samples.vxlan_lease(2), reset=True, network=samples.network()),
            changed(synced=True, cursor="e2.1"),
        ],
        [
            "= a new snapshot begins",
            "- 10.5.3.0/24 h3 10.99.0.13 vxlan vni 1 c6:d2:32:6f:8f:03",
            "= synced, 1 lease, cursor e2.1",
        ],
    ),
    "a broken configuration, and a store that is away": (
        [changed(network_error="it has no Network", store=AWAY, synced=True)],
        [
            "! the stored network configuration is not in force: it has no Network",
            "! the store (etcd) is away: refused",
        ],
    ),
    "a lease that nobody could use": ([changed(UNUSABLE, synced=True)], ["+ nonsense - {} reserved"]),
    "leases of a cluster that is awaited, which are not gone": (
        [
            changed(imported(4), synced=True),
            changed(
                samples.vxlan_lease(2), samples.vxlan_lease(3), reset=True, synced=True, cursor="e2.1",
                awaited=pb.AwaitedClusters(names=["west"]),
            ),
            changed(synced=True, awaited=pb.AwaitedClusters()),
        ],
        [
            "+ 10.5.4.0/24 h4 10.99.0.14 vxlan vni 1 c6:d2:32:6f:8f:04",
            "= a new snapshot begins",
            "! the leases of cluster west are not known yet: those of before stay",
            "= synced, 3 leases, cursor e2.1",
            "- 10.5.4.0/24 h4 10.99.0.14 vxlan vni 1 c6:d2:32:6f:8f:04",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TOLD)
async def test_it_tells(node: FakeNode, what: str) -> None:
    """And nothing else: an empty step is a bookmark, which is told next."""
    steps, told = TOLD[what]
    async with watching(node) as watch:
        node.lease.steps.put_nowait(snapshot(2, 3, cursor="e1.2"))
        while await watch.line() != "= synced, 2 leases, cursor e1.2":
            pass
        for step in (*steps, changed(synced=True, cursor="e9.9")):
            node.lease.steps.put_nowait(step)
        lines = [await watch.line() for _ in told]
        assert [*lines, await watch.line()] == [*told, "= bookmark, cursor e9.9"]


async def test_changes_appear_as_they_come_and_ctrl_c_ends_with_0(node: FakeNode) -> None:
    async with watching(node) as watch:
        node.lease.steps.put_nowait(snapshot(2, cursor="e1.1"))
        assert await watch.line() == "+ 10.5.2.0/24 h2 10.99.0.12 vxlan vni 1 c6:d2:32:6f:8f:02"
        assert await watch.line() == "network 10.5.0.0/16 (a /24 per node), vxlan"
        assert await watch.line() == "= synced, 1 lease, cursor e1.1"
        gone = pb.Change(removed="10.5.2.0-24")
        node.lease.steps.put_nowait(pb.WatchLeasesResponse(changes=[gone], synced=True, cursor="e1.2"))
        assert (await watch.line()).startswith("- 10.5.2.0/24 h2")
        assert await watch.end() == (0, "")


async def test_a_restart_of_the_lease_service_is_survived_and_nothing_is_told_twice(node: FakeNode) -> None:
    async with watching(node) as watch:
        node.lease.steps.put_nowait(snapshot(2, 3, cursor="e1.1"))
        while not (await watch.line()).startswith("= synced"):
            pass
        node.lease.steps.put_nowait(None)
        assert await watch.line() == "! connection lost: the service is stopping; trying again"
        await node.stop("lease")
        await node.start("lease")
        node.lease.steps.put_nowait(snapshot(3, cursor="e2.1"))
        told = [await watch.line() for _ in range(4)]
        assert told == [
            "= connected again",
            "= a new snapshot begins",
            "- 10.5.2.0/24 h2 10.99.0.12 vxlan vni 1 c6:d2:32:6f:8f:02",
            "= synced, 1 lease, cursor e2.1",
        ]
        assert node.lease.replies.asked[-1][1].cursor == "e1.1"
        assert (await watch.end())[0] == 0


async def test_a_snapshot_that_breaks_off_is_begun_anew(node: FakeNode) -> None:
    """A cursor of before it would have changes continue half a table."""
    async with watching(node) as watch:
        broken_off = pb.WatchLeasesResponse(reset=True, changes=snapshot(3, cursor="").changes)
        for step in (snapshot(2, 3, cursor="e1.1"), None, broken_off, None, snapshot(2, 3, cursor="e2.1")):
            node.lease.steps.put_nowait(step)
        while await watch.line() != "= synced, 2 leases, cursor e2.1":
            pass
        asked = [request.cursor for method, request in node.lease.replies.asked if method == "WatchLeases"]
        assert asked == ["", "e1.1", ""]
        assert (await watch.end())[0] == 0


async def test_as_json_every_step_is_one_line(node: FakeNode) -> None:
    async with watching(node, "-o", "json") as watch:
        node.lease.steps.put_nowait(snapshot(2, cursor="e1.1"))
        node.lease.steps.put_nowait(pb.WatchLeasesResponse(synced=True, cursor="e1.2"))
        first = json.loads(await watch.line())
        assert first["changes"][0]["upserted"]["subnets"][0]["vxlan"]["mac"] == "c6:d2:32:6f:8f:02"
        second = json.loads(await watch.line())
        assert [second[key] for key in ("synced", "cursor", "changes", "reset")] == [True, "e1.2", [], False]
        node.lease.steps.put_nowait(None)
        assert (await watch.end())[0] == 0


async def test_a_lease_service_that_was_never_there_ends_it_with_2(tmp_path: Path) -> None:
    ran = await run(tmp_path, "watch", "--lease", f"{tmp_path}/none.sock")
    assert (ran.code, ran.out) == (2, "")
    assert "start flannelette-lease, or check --lease" in ran.err


async def test_a_reader_that_goes_away_ends_it_without_a_traceback(node: FakeNode) -> None:
    async with watching(node) as watch:
        node.lease.steps.put_nowait(snapshot(2, cursor="e1.1"))
        await watch.line()
        watch.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # as `head -n 1` does
        for number in range(3, 9):
            node.lease.steps.put_nowait(snapshot(number, cursor=f"e1.{number}"))
        async with asyncio.timeout(PATIENCE):
            assert watch.process.stderr is not None
            assert await watch.process.stderr.read() == b""
            await watch.process.wait()
