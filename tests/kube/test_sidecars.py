"""Flannelette's containers are killed, hang, run out of memory and are replaced; no packet between pods is lost."""

import asyncio

import pytest

from lab.kubernetes.cluster import Cluster
from tests.kube.flood import flood
from tests.kube.workloads import (
    DAEMON_SET,
    OURS,
    SIDECARS,
    get,
    send_signal,
    sidecars,
    until,
    until_rolled_out,
)
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("name", SIDECARS)
async def test_a_killed_sidecar_comes_back_on_each_node(cluster: Cluster, name: str) -> None:
    async with flood(cluster, f"{name} killed on each node in turn"):
        for each in await sidecars(cluster, name):
            await send_signal(cluster, each, "SIGKILL")
            await cluster.until_replaced([each])


async def test_a_deleted_pod_is_replaced(cluster: Cluster) -> None:
    async with flood(cluster, "pod deleted on each node in turn"):
        for pod in (await get(cluster, "pods", *OURS, "--selector=app=flannel"))["items"]:
            node = pod["spec"]["nodeName"]
            gone = [each for each in await sidecars(cluster) if each.node == node]
            await cluster.kubectl("delete", "pod", *OURS, pod["metadata"]["name"])
            await cluster.until_replaced(gone)


async def test_a_sidecar_that_hangs_is_replaced_and_the_others_stay_ready(cluster: Cluster) -> None:
    """Another one on each node."""
    before = await sidecars(cluster)
    hanging = [
        next(each for each in before if (each.node, each.name) == (node.name, name))
        for node, name in zip(cluster.nodes, SIDECARS, strict=True)
    ]
    others = {(each.node, each.name, each.id) for each in before if each not in hanging}

    async def are_others_ready() -> bool:
        now = {(each.node, each.name, each.id) for each in await sidecars(cluster) if each.is_ready}
        return others <= now

    async with flood(cluster, "each sidecar stopped, on another node, until their probes have them replaced"):
        for each in hanging:
            await send_signal(cluster, each, "SIGSTOP")
        replaced = asyncio.create_task(cluster.until_replaced(hanging))
        while not replaced.done():
            assert await are_others_ready()
            await asyncio.wait([replaced], timeout=1)
        await replaced


async def test_a_rollout_replaces_pods_one_by_one(cluster: Cluster) -> None:
    async with flood(cluster, "rollout restart"):
        former = await sidecars(cluster)
        await cluster.kubectl("rollout", "restart", *OURS, DAEMON_SET)
        await until_rolled_out(cluster)
        await cluster.until_replaced(former)


@pytest.mark.parametrize("name", SIDECARS)
async def test_a_limit_below_what_a_sidecar_needs_stops_the_rollout_at_its_first_node(
    cluster: Cluster, name: str
) -> None:
    async def is_killed() -> bool:
        pods = (await get(cluster, "pods", *OURS, "--selector=app=flannel"))["items"]
        statuses = [each for pod in pods for each in pod["status"].get("containerStatuses", ())]
        ends = [
            (each["name"], ended["reason"])
            for each in statuses
            for state in (each["state"], each["lastState"])
            if (ended := state.get("terminated"))
        ]
        return (name, "OOMKilled") in ends

    async with flood(cluster, f"{name} killed for its memory limit, and the limit removed"):
        limit = ("set", "resources", *OURS, DAEMON_SET, f"--containers={name}")
        await cluster.kubectl(*limit, "--limits=memory=16Mi", "--requests=memory=16Mi")
        await until(is_killed, 2 * PATIENCE)
        assert len([each for each in await sidecars(cluster, name) if each.is_ready]) == len(cluster.nodes) - 1
        await cluster.kubectl("rollout", "undo", *OURS, DAEMON_SET)
        await until_rolled_out(cluster)
