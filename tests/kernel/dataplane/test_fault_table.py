"""Every row of the fault table, measured: how long until it was repaired, how many of 100 packets a second were lost.

The bounds are wide, for a busy machine is no fault. With FLANNELETTE_FAULTS=FILE the figures are added to that file,
one JSON object a line; `python -m tests.faults.table FILE` makes the page's table of them.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.faults.rows import FAULTS, Fault
from tests.faults.scene import OnEtcd, Scene
from tests.hosts.dataplane import Cluster, Running
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.reboots import REMEMBERED, restarted
from tests.hosts.two_hosts import two_hosts
from tests.patience import PATIENCE, pauses
from tests.shared import Shared, sharing

SECONDS = PATIENCE / 4
pytestmark = pytest.mark.asyncio(loop_scope="module")
DECISIONS = (pb.EVENT_KIND_REPAIR, pb.EVENT_KIND_UNDERLAY, pb.EVENT_KIND_DEVICE, pb.EVENT_KIND_RESYNC)


@asynccontextmanager
async def scene_on(store: str) -> AsyncIterator[Scene]:
    make_netns = NamespaceMaker()
    with ExitStack() as ending:
        ending.callback(make_netns.close)
        kind = OnEtcd if store == "etcd" else Cluster
        hosts = ending.enter_context(two_hosts(make_netns(), make_netns, "vxlan", "ipv4", kind))
        if isinstance(hosts.cluster, OnEtcd):
            ending.callback(hosts.cluster.etcd.discard)
        hosts.leave_flanneld_state()
        await hosts.cluster.quiet()
        await hosts.join()
        async with AsyncExitStack() as stack:

            async def start() -> Running:
                return await stack.enter_async_context(restarted(hosts.cluster, "--audit-interval=600"))

            running = await start()
            await running.until(peers=1)
            yield Scene(hosts, start, running)


def state_of(scene: Scene) -> tuple[object, ...]:
    """What a fault leaves as it was, if it can: all but the numbers of the interfaces, and a bridge's timers."""
    cluster = scene.cluster
    links = [*cluster.ip("-o link show").splitlines(), cluster.ip("-d -o link show flannel.1")]
    kernel = scene.hosts.objects(), [line.partition(": ")[2] for line in links], cluster.ip("-br addr show")
    return kernel, scene.running.process.poll(), cluster.leases.is_running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Shared[str, Scene]]:
    async with sharing(scene_on, state_of) as shared:
        yield shared


async def is_whole(scene: Scene, fault: Fault) -> bool:
    """Whether it is ready, or as ready as it gets, and there is nothing to do."""
    try:
        plan = await scene.running.resync(dry_run=True)
    except grpc.aio.AioRpcError:
        return False
    status = await scene.running.status()
    is_ready = status.ready and status.lease_service_connected
    if fault.remembers:
        is_ready = any(reason.startswith(REMEMBERED) for reason in status.reasons)
    return is_ready and not plan.commands and status.peers.programmed == 1


def keep(line: str) -> None:
    print(line)
    if path := os.environ.get("FLANNELETTE_FAULTS"):
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


@pytest.mark.parametrize("name", [name for name, _ in sorted(FAULTS.items(), key=lambda row: row[1].store)])
async def test_a_fault_is_repaired(scenes: Shared[str, Scene], name: str) -> None:
    async with scenes.borrowed(FAULTS[name].store) as scene:
        await measure(scene, name)


async def measure(scene: Scene, name: str) -> None:
    fault = FAULTS[name]
    position = (await scene.running.events())[-1].position
    with scene.hosts.stream() as stream:
        async with stream:
            await asyncio.sleep(0.3)
            at, pause = await fault.act(scene), pauses()
            async with asyncio.timeout(PATIENCE):
                while fault.told and not await scene.running.events(after=position, kinds=fault.told):  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(next(pause))
                while not await is_whole(scene, fault):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(next(pause))
            await asyncio.sleep(0.5)
    decisions = await scene.running.events(after=position, kinds=DECISIONS) if fault.told else []
    seconds = max((event.time.ToMicroseconds() / 1e6 - at for event in decisions), default=0.0)
    found = {"fault": name, "repaired_ms": round(seconds * 1000), "sent": stream.sent, "lost": len(stream.lost)}
    keep(json.dumps(found))
    assert stream.sent > 0
    assert len(stream.lost) * stream.INTERVAL < SECONDS
    assert seconds < SECONDS
    if not fault.told:
        assert stream.lost == []
