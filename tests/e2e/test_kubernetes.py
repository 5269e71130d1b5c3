"""The manifests at work: nodes of a real API server run what it holds, and the pods on them reach each other."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from itertools import permutations

import pytest

from lab.pings import Pinger, Witness
from tests.kube import ApiServer, Document
from tests.kube_nodes import nodes_of
from tests.kubelet import Kubelet
from tests.lease_service import eventually
from tests.manifests import OVERLAYS, run_tool
from tests.namespaces import NamespaceMaker, NetworkNamespace

PREFIX = "flannel.alpha.coreos.com/"
DAEMON_SET = "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds"


@pytest.fixture
def nodes(make_netns: NamespaceMaker, kube: ApiServer) -> Iterator[list[Kubelet]]:
    with nodes_of(kube, make_netns, 3) as made:
        yield made


@pytest.fixture
def apply(kube: ApiServer) -> Iterator[Callable[[str], None]]:
    """kubectl apply -k of an overlay; what it made is deleted afterwards, but for the namespace."""
    flags = (f"--kubeconfig={kube.kubeconfig()}", f"--cache-dir={kube.directory}/kubectl")
    yield lambda overlay: print(run_tool("kubectl", *flags, "apply", "-k", str(OVERLAYS / overlay)))
    for path in ("apps/v1/namespaces/kube-flannel/daemonsets", "apps/v1/namespaces/kube-flannel/deployments"):
        kube.call("DELETE", f"/apis/{path}")


def template(kube: ApiServer, path: str = DAEMON_SET) -> Document:
    """What a pod is made from, as the API server has completed it."""
    found: Document = kube.call("GET", path)["spec"]["template"]
    return found


async def sender_of_a_ping(source: NetworkNamespace, place: NetworkNamespace, address: str) -> str:
    """Who has sent it, as its receiver sees it."""
    with Pinger(source) as pinger, Witness(place) as witness:
        token, seconds = await pinger.ping(ip_address(address), timeout=10)
        return "lost" if seconds is None else str(await witness.source_of(token))


def is_available(kube: ApiServer, node: str) -> bool:
    condition = kube.condition(node)
    return condition is not None and (condition["status"], condition["reason"]) == ("False", "FlannelIsUp")


async def test_the_default_overlay_on_three_nodes(
    nodes: list[Kubelet], kube: ApiServer, apply: Callable[[str], None], make_netns: NamespaceMaker
) -> None:
    apply("per-node")
    for number, node in enumerate(nodes, 1):
        kube.make_node(node.node, f"10.244.{number}.0/24")
    late = nodes[2]
    kube.delete_node("n3")
    with ExitStack() as stack:
        running = {n.node: stack.enter_context(n.start("flannel", template(kube))) for n in nodes}
        for node in nodes[:2]:
            await running[node.node].until_ready()
            await eventually(partial(is_available, kube, node.node))
        conflist = late.host / "etc/cni/net.d/10-flannel.conflist"
        assert not conflist.exists(), "the node is not known yet: no pod may be made here"
        await running["n3"].until("dataplane", "readinessProbe", 503)
        kube.make_node("n3", "10.244.3.0/24")
        await running["n3"].until_ready()
        await eventually(conflist.exists)

        for number, node in enumerate(nodes, 1):
            said = kube.annotations(node.node)
            assert said[f"{PREFIX}public-ip"] == node.address
            assert json.loads(said[f"{PREFIX}backend-data"])["VNI"] == 1
            assert (node.host / "run/flannel/subnet.env").read_text() == (
                f"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.{number}.1/24\n"
                "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
            )
        pods = [make_netns(f"pod{number}") for number in (1, 2, 3)]
        for node, pod in zip(nodes, pods, strict=True):
            node.plug(pod)
        for (a, source), (b, target) in permutations(enumerate(pods, 1), 2):
            assert await sender_of_a_ping(source, target, f"10.244.{b}.2") == f"10.244.{a}.2"
        late_address = await sender_of_a_ping(pods[0], late.namespace, late.address)
        assert late_address == nodes[0].address, "masqueraded: the world knows no way to a pod"
