"""A cluster with kube-flannel gets our pods node by node, then kube-flannel again, and no packet is lost."""

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address

from lab.pings import Pinger
from lab.stream import Path, Stream
from tests.flannel.kube_flannel import KubeFlannel
from tests.flannel.real import require_flanneld
from tests.hosts.namespaces import NamespaceMaker
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.containers import ENVIRONMENT
from tests.kubernetes.kubelet import Kubelet, Pod
from tests.kubernetes.manifests import OVERLAYS, Kubectl
from tests.kubernetes.nodes import is_up, nodes_of, template
from tests.waiting import equals, eventually, eventually_exists

KUBELETS = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
"""flanneld panics at a node without any annotation."""
PREFIX = "flannel.alpha.coreos.com/"


def makers(node: Kubelet) -> set[str]:
    """Of the routes to other nodes' pods: the kernel's `boot`, as which flanneld signs, or our 77."""
    shown = node.namespace.ip("-json", "-details", "route", "show", "root", "10.244.0.0/16", "dev", "flannel.1")
    return {route["protocol"] for route in json.loads(shown)}


async def until_made_by(node: Kubelet, *protocols: str) -> None:
    await eventually(lambda: makers(node), equals(set(protocols)))


def clean_up(node: Kubelet) -> None:
    """As docs/kubernetes.md has it for the way back."""
    command = node.namespace.command(sys.executable, "-m", "flannelette.services.dataplane.api.cleanup")
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)


async def stop(pod: Pod) -> None:
    """As the DaemonSet does with one that is to be replaced."""
    for name in ("masq", "dataplane", "lease"):
        await asyncio.to_thread(pod.stop, name)


async def test_nodes_change_from_kube_flannel_and_back_while_their_pods_talk(
    make_netns: NamespaceMaker, kube: ApiServer, kubectl: Kubectl
) -> None:
    require_flanneld()
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    made = template(kube)
    with ExitStack() as stack:
        nodes = stack.enter_context(nodes_of(kube, make_netns, 2))
        pods = [make_netns(f"pod{number}") for number in (1, 2)]
        for number, node in enumerate(nodes, 1):
            kube.make_node(node.node, f"10.244.{number}.0/24", annotations=KUBELETS)
        flannelds = [stack.enter_context(KubeFlannel(node, made)) for node in nodes]
        for node, flanneld, pod in zip(nodes, flannelds, pods, strict=True):
            flanneld.until("flannel is ready|Running backend")
            await eventually(partial(kube.condition, node.node), is_up)
            await eventually_exists(node.host / "run/flannel/subnet.env")
            node.plug(pod)
        for node in nodes:
            await until_made_by(node, "boot")
        before = [kube.annotations(node.node)[f"{PREFIX}backend-data"] for node in nodes]
        pingers = [stack.enter_context(Pinger(pod)) for pod in pods]
        paths = [
            Path("n1", "n2", pingers[0], ip_address("10.244.2.2")),
            Path("n2", "n1", pingers[1], ip_address("10.244.1.2")),
        ]
        await asyncio.gather(*(path.pinger.ping(path.address, 10) for path in paths))  # once all know all

        async with Stream(paths) as stream:
            running = []
            for node, flanneld in zip(nodes, flannelds, strict=True):
                await asyncio.to_thread(flanneld.stop)
                running.append(stack.enter_context(node.start("flannel", made)))
                await running[-1].until_ready()
                await until_made_by(node, "77")
            assert [kube.annotations(node.node)[f"{PREFIX}backend-data"] for node in nodes] == before

            await stop(running[0])
            running[0] = stack.enter_context(nodes[0].start("flannel-of-the-next-release", made))
            await running[0].until_ready()

            for node, ours in zip(nodes, running, strict=True):
                await stop(ours)
                again = stack.enter_context(KubeFlannel(node, made))
                await asyncio.to_thread(again.until, "flannel is ready|Running backend")
                await until_made_by(node, "77", "boot")
                await asyncio.to_thread(clean_up, node)
                assert makers(node) == {"boot"}
        assert stream.sent > 500
        assert stream.lost == []
