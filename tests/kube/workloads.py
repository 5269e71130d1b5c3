"""What runs in the cluster, as kubectl shows it, and ways to disturb it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from lab.build import CommandFailed
from lab.kubernetes.cluster import POLL_SECONDS, Cluster, Container
from lab.kubernetes.node import Node
from tests.patience import PATIENCE

SIDECARS: Final = ("lease", "dataplane", "masq")
OURS: Final = ("--namespace", "kube-flannel")
DAEMON_SET: Final = "daemonset/kube-flannel-ds"


async def get(cluster: Cluster, *words: str) -> Any:
    """What `kubectl get` says, as objects."""
    return json.loads(await cluster.kubectl("get", *words, "--output=json"))


async def sidecars(cluster: Cluster, *names: str) -> list[Container]:
    """Flannelette's containers of these names, or all of them."""
    return [each for each in await cluster.containers() if each.name in (names or SIDECARS)]


def node_of(cluster: Cluster, name: str) -> Node:
    """The node of this name."""
    return next(node for node in cluster.nodes if node.name == name)


async def send_signal(cluster: Cluster, container: Container, signal: str) -> None:
    """To the container's first process."""
    node = node_of(cluster, container.node)
    await node.run("ctr", "-n", "k8s.io", "tasks", "kill", "--signal", signal, container.id)


async def until_rolled_out(cluster: Cluster, workload: str = DAEMON_SET, namespace: str = "kube-flannel") -> None:
    """Every pod of it is the newest one, and ready."""
    await cluster.kubectl("rollout", "status", "--namespace", namespace, workload, f"--timeout={4 * PATIENCE:.0f}s")


async def until(condition: Callable[[], Awaitable[bool]], within: float = PATIENCE) -> None:
    """Returns as soon as the condition holds; an API server that is away is waited for."""
    async with asyncio.timeout(within):
        while True:
            try:
                if await condition():
                    return
            except CommandFailed:
                pass
            await asyncio.sleep(POLL_SECONDS)


async def are_nodes_ready(cluster: Cluster) -> bool:
    """The kubelets say so, and the API server has heard it."""
    items = (await get(cluster, "nodes"))["items"]
    ready = [c["status"] for item in items for c in item["status"]["conditions"] if c["type"] == "Ready"]
    return ready == ["True"] * len(cluster.nodes)


async def are_all_ready(cluster: Cluster) -> bool:
    """Every node and every container."""
    return await are_nodes_ready(cluster) and all(each.is_ready for each in await cluster.containers())


async def state_of(cluster: Cluster) -> object:
    """What a test must leave as it was: what runs on each node, and that it is ready."""
    try:
        await until(lambda: are_all_ready(cluster))
    except TimeoutError:
        return object()  # as nothing was before
    daemon_set = await get(cluster, DAEMON_SET, *OURS)
    running = sorted((each.node, each.name) for each in await cluster.containers())
    return daemon_set["spec"]["template"]["spec"], running
