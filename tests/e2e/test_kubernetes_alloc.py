"""alloc on Kubernetes: annotations, `subnet.env`, rules and kernel of a node are as kube-flannel leaves them."""

import asyncio
import json
from functools import partial

from tests.flannel.kube_flannel import KubeFlannel
from tests.flannel.real import require_flanneld
from tests.hosts.namespaces import NamespaceMaker
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.manifests import OVERLAYS, Kubectl
from tests.kubernetes.nodes import is_up, nodes_of, template
from tests.kubernetes.stores import flannels
from tests.waiting import contains, eventually

KUBELETS = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
"""flanneld panics at a node without any annotation."""
JUMPS = ("-j FLANNEL-POSTRTG", "-j FLANNEL-FWD")
NETWORK = '{"Network":"10.244.0.0/16","Backend":{"Type":"alloc"}}'


def kernel_of(node: Kubelet) -> list[str]:
    """Devices, addresses and routes."""
    return [node.namespace.ip("-o", *words.split()) for words in ("link", "address", "route show table all")]


def shown_by(node: Kubelet, kube: ApiServer) -> str:
    """Annotations, `subnet.env` and flannel's rules; n2's addresses as n1's."""
    rules = [line for line in node.namespace.run("iptables-nft-save").splitlines() if "FLANNEL" in line]
    text = "\n".join([str(flannels(kube, node.node)), (node.host / "run/flannel/subnet.env").read_text(), *rules])
    return text.replace("10.244.2.", "10.244.1.").replace("172.18.0.2", "172.18.0.1")


async def test_a_node_is_as_with_kube_flannel(make_netns: NamespaceMaker, kube: ApiServer, kubectl: Kubectl) -> None:
    require_flanneld()
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    patch = json.dumps({"data": {"net-conf.json": NETWORK}})
    kubectl("patch", "configmap", "kube-flannel-cfg", "--namespace=kube-flannel", "--type=merge", f"--patch={patch}")
    made = template(kube)
    with nodes_of(kube, make_netns, 2) as nodes:
        for number, node in enumerate(nodes, 1):
            kube.make_node(node.node, f"10.244.{number}.0/24", annotations=KUBELETS)
        untouched = list(map(kernel_of, nodes))
        first, second = nodes
        with KubeFlannel(first, made) as flanneld:
            await asyncio.to_thread(flanneld.until, "flannel is ready|Running backend")
            await eventually(lambda: kube.condition("n1"), is_up)
            await eventually(lambda: shown_by(first, kube), contains("-A POSTROUTING", "-A FORWARD"))
            flannels_node = shown_by(first, kube)
            await asyncio.to_thread(flanneld.stop)
        assert {"backend-type": "", "backend-data": "null"}.items() <= flannels(kube, "n1").items()
        with first.start("flannel", made) as taken_over, second.start("flannel", made) as fresh:
            for node, pod in zip(nodes, (taken_over, fresh), strict=True):
                await pod.until_ready()
                await eventually(partial(kube.condition, node.node), is_up)
                assert shown_by(node, kube) == flannels_node
        assert list(map(kernel_of, nodes)) == untouched
