"""An underlay that is slow, reorders or loses packets: what probes and doctor make of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.waiting import eventually

pytestmark = pytest.mark.modules("netem")


@asynccontextmanager
async def probing(netns: NetworkNamespace, make_netns: NamespaceMaker) -> AsyncIterator[tuple[TwoHosts, Running]]:
    with two_hosts(netns, make_netns, "vxlan", "ipv4") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--probe-rate=20") as running:
            await running.until(peers=1)
            await until(running, lambda status: status.probes.answering == 1)
            yield hosts, running


async def until(running: Running, holds: Callable[[pb.Status], bool]) -> pb.Status:
    asked = pb.GetStatusRequest(figures=True)
    answer = await eventually(
        lambda: running.stub.GetStatus(asked), lambda answer: holds(answer.status), 2 * PATIENCE
    )
    return answer.status


async def test_an_underlay_that_is_slow_and_reorders_is_no_finding_and_its_round_trips_are_shown(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with probing(netns, make_netns) as (hosts, running):
        hosts.n2.run(*"tc qdisc add dev eth0 root netem delay 400ms 20ms reorder 25% 50%".split())
        status = await until(running, lambda status: status.probes.round_trip_microseconds > 40_000)
    assert status.ready
    assert not status.findings


async def test_the_loss_of_an_underlay_is_shown_and_is_a_finding_once_nothing_passes(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with probing(netns, make_netns) as (hosts, running):
        hosts.n2.run(*"tc qdisc add dev eth0 root netem loss 30%".split())
        status = await until(running, lambda status: status.probes.loss > 0)
        assert status.ready
        hosts.n2.run(*"tc qdisc change dev eth0 root netem loss 100%".split())
        status = await until(running, lambda status: "peer-down" in [each.check for each in status.findings])
        assert status.ready
        hosts.n2.run(*"tc qdisc del dev eth0 root".split())
        await until(running, lambda status: status.probes.answering == 1 and not status.findings)
