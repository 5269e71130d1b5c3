"""Nodes lose their kubelet or container runtime, are drained, fail, boot, join and leave; no other notices."""

import asyncio
from functools import partial
from ipaddress import ip_address

import pytest

from lab.build import CommandFailed
from lab.kubernetes import trial
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.node import Node
from lab.pings import Pinger
from tests.kube.flood import everybody_reaches_everybody, flood
from tests.kube.workloads import are_nodes_ready, get, until, until_rolled_out
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("program", ["kubelet", "containerd"])
async def test_a_node_keeps_its_containers_while_a_program_of_it_is_restarted(cluster: Cluster, program: str) -> None:
    async def runs_again(node: Node, former: str) -> bool:
        kubelet = await node.run("busybox", "wget", "-qO-", "http://127.0.0.1:10248/healthz")
        return await node.run("pidof", program) != former and kubelet == "ok"

    async def containers_are_as_before() -> bool:  # for seconds a new kubelet calls them not ready
        return await cluster.containers() == before

    before = await cluster.containers()
    async with flood(cluster, f"{program} killed on each node in turn"):
        for node in cluster.nodes:
            former = await node.run("pidof", program)
            await node.run("kill", "-9", *former.split())
            await until(partial(runs_again, node, former))
        await until(containers_are_as_before)


async def test_the_pods_of_a_drained_node_go_to_others(cluster: Cluster) -> None:
    name = cluster.nodes[-1].name
    await cluster.kubectl(
        *("create", "deployment", "movable", "--image=kube.invalid/pod:1", "--replicas=6", "--", "sleep", "infinity")
    )
    await until_rolled_out(cluster, "deployment/movable", "default")
    async with flood(cluster, "drain and uncordon"):
        await cluster.kubectl("drain", name, "--ignore-daemonsets", "--grace-period=1")
        await until_rolled_out(cluster, "deployment/movable", "default")
        await cluster.kubectl("uncordon", name)
    pods = (await get(cluster, "pods", "--selector=app=movable", "--field-selector=status.phase=Running"))["items"]
    places = {pod["spec"]["nodeName"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    assert places <= {node.name for node in cluster.nodes[:-1]}
    with Pinger(cluster.nodes[-1].host.pod) as pinger:
        for pod in pods:
            _, seconds = await pinger.ping(ip_address(pod["status"]["podIP"]), PATIENCE)
            assert seconds is not None
    await cluster.kubectl("delete", "deployment", "movable")


async def test_pods_stay_ready_while_the_api_server_is_away(cluster: Cluster) -> None:
    """ADR 36."""

    async def answers() -> bool:
        return await cluster.kubectl_at_once("get", "--raw=/readyz") == "ok"

    async def is_away() -> bool:
        try:
            return not await answers()
        except CommandFailed:
            return True

    first = cluster.nodes[0]
    manifest, elsewhere = "/etc/kubernetes/manifests/kube-apiserver.yaml", "/root/kube-apiserver.yaml"
    before = await cluster.containers()
    async with flood(cluster, "API server away for a minute"):
        await first.run("mv", manifest, elsewhere)
        await until(is_away)
        await asyncio.sleep(60)
        for node in cluster.nodes:
            for port in (9471, 9472, 9473):
                assert await node.run("busybox", "wget", "-qO-", f"http://127.0.0.1:{port}/readyz")
        await first.run("mv", elsewhere, manifest)
        await until(answers)
        await until(partial(are_nodes_ready, cluster))
    assert await cluster.containers() == before


async def test_a_node_whose_power_fails_boots_and_is_whole(cluster: Cluster) -> None:
    outcome = await trial.fail_and_boot(cluster, await cluster.pods())
    assert outcome.failures == []


async def test_a_node_joins_and_leaves(cluster: Cluster) -> None:
    async def has_left() -> bool:
        """Also from the list of pods, which the API server collects after a minute."""
        routes = [await each.run("ip", "route", "show", "dev", "flannel.1") for each in cluster.nodes]
        pods = await get(cluster, "pods", "--all-namespaces", f"--field-selector=spec.nodeName={node.name}")
        return {len(each.splitlines()) for each in routes} == {len(cluster.nodes) - 1} and not pods["items"]

    async with flood(cluster, "a node joins"):
        node = await cluster.add_node()
        await until(partial(are_nodes_ready, cluster))
        await until_rolled_out(cluster)
        await until_rolled_out(cluster, "daemonset/web", "default")
    async with flood(cluster, "a node leaves", without=[node.name]):
        await cluster.kubectl("drain", node.name, "--ignore-daemonsets")
        await cluster.remove_node(node)
        await cluster.kubectl("delete", "node", node.name)
        await until(has_left, 3 * PATIENCE)


async def test_the_whole_cluster_boots(cluster: Cluster) -> None:
    former = await cluster.containers()
    for node in cluster.nodes:
        node.fail()
    for node in cluster.nodes:
        await node.plug_again()
    await asyncio.gather(*(node.boot() for node in cluster.nodes))
    await cluster.until_replaced(former)
    await until(partial(are_nodes_ready, cluster))
    await everybody_reaches_everybody(cluster)
