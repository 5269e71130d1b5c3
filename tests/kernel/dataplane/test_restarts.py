"""Restarts at any moment, one after the other, under a stream of pings: 8 here, 400 with FLANNELETTE_SOAK=1."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import two_hosts

RESTARTS: Final = 200 if os.environ.get("FLANNELETTE_SOAK") else 4
SEED: Final = 20260504


async def at_any_moment(running: Running, chance: random.Random) -> None:
    """Of its start, or soon after."""
    await asyncio.sleep(chance.uniform(0, 0.8))


async def when_ready(running: Running, chance: random.Random) -> None:
    """With everything in the kernel."""
    await running.until(peers=1)


async def handed_over(running: Running, chance: random.Random) -> None:
    """So that its successor takes all of it over."""
    await running.until(peers=1)
    await running.hand_over()


MOMENTS: Final[tuple[Callable[[Running, random.Random], Awaitable[None]], ...]] = (
    at_any_moment,
    when_ready,
    handed_over,
)


@pytest.mark.parametrize(("backend", "families"), [("vxlan", "dual"), ("host-gw", "ipv4")])
async def test_a_dataplane_killed_or_stopped_again_and_again_loses_no_packet(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    chance = random.Random(SEED)  # noqa: S311 - to be had again
    with two_hosts(netns, make_netns, backend, families) as hosts, hosts.stream() as stream:
        hosts.leave_flanneld_state()
        await hosts.cluster.quiet()
        await hosts.join()
        flannels = hosts.objects()
        async with stream:
            for number in range(RESTARTS):
                async with hosts.cluster.dataplane() as running:
                    await MOMENTS[number % len(MOMENTS)](running, chance)
                    await running.end(chance.choice([signal.SIGKILL, signal.SIGTERM]))
                assert not stream.lost[:-20], f"lost by restart {number}"  # the last ones may be on their way
            async with hosts.cluster.dataplane() as running:
                await running.until(peers=1)
                ours = hosts.objects()
                assert (await running.resync(dry_run=True)).commands == []
                await running.hand_over()
        assert (stream.sent > 50 * RESTARTS // 4, stream.lost) == (True, [])
        assert len([line for line in ours if " proto 77 metric " in line]) == len(hosts.rows)
        assert hosts.objects() == flannels
