"""The manifests at work: nodes of a real API server run what it holds, and the pods on them reach each other."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from ipaddress import ip_address
from itertools import permutations
from pathlib import Path

import pytest

from lab.pings import Pinger, Witness
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelet, Pod
from tests.kubernetes.manifests import OVERLAYS, Kubectl
from tests.kubernetes.nodes import is_up, nodes_of, proxy, template
from tests.patience import PATIENCE
from tests.waiting import contains, equals, eventually, eventually_exists

PREFIX = "flannel.alpha.coreos.com/"
LEASE = "/apis/apps/v1/namespaces/kube-flannel/deployments/flannelette-lease"
MOST_MEMORY = 90_000
"""KiB of the three services together, in a small cluster (docs/kubernetes.md)."""
PODS = "/api/v1/namespaces/kube-flannel/pods"


@pytest.fixture
def nodes(make_netns: NamespaceMaker, kube: ApiServer) -> Iterator[list[Kubelet]]:
    with nodes_of(kube, make_netns, 3) as made:
        yield made


async def sender_of_a_ping(source: NetworkNamespace, place: NetworkNamespace, address: str) -> str:
    """Who has sent it, as its receiver sees it."""
    with Pinger(source) as pinger, Witness(place) as witness:
        token, seconds = await pinger.ping(ip_address(address), timeout=PATIENCE)
        return "lost" if seconds is None else str(await witness.source_of(token))


def look(kube: ApiServer, kubectl: Kubectl, pod: Pod) -> tuple[int, str]:
    """`flannelette status` beside the pod, as docs/kubernetes.md has it."""
    spec = template(kube)
    kube.call("POST", PODS, {"kind": "Pod", "apiVersion": "v1", **spec, "metadata": {"name": "looked-into"}})
    flags = ("--image=flannelette-ctl", "--attach=false", "--profile=restricted")
    custom = f"--custom={OVERLAYS.parent}/look.yaml"
    kubectl("debug", "looked-into", "--namespace=kube-flannel", *flags, custom, "--", "flannelette", "status")
    (container,) = kube.call("GET", f"{PODS}/looked-into")["spec"]["ephemeralContainers"]
    return pod.look(container)


async def test_the_default_overlay_on_three_nodes(
    nodes: list[Kubelet], kube: ApiServer, kubectl: Kubectl, make_netns: NamespaceMaker
) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    for number, node in enumerate(nodes, 1):
        kube.make_node(node.node, f"10.244.{number}.0/24")
    late = nodes[2]
    kube.delete_node("n3")
    with ExitStack() as stack:
        running = {n.node: stack.enter_context(n.start("flannel", template(kube))) for n in nodes}
        for node in nodes[:2]:
            await running[node.node].until_ready()
            await eventually(partial(kube.condition, node.node), is_up)
        conflist = late.host / "etc/cni/net.d/10-flannel.conflist"
        assert not conflist.exists(), "the node is not known yet: no pod may be made here"
        await running["n3"].until("dataplane", "readinessProbe", 503)
        kube.make_node("n3", "10.244.3.0/24")
        await running["n3"].until_ready()
        await eventually_exists(conflist)

        for number, node in enumerate(nodes, 1):
            said = kube.annotations(node.node)
            assert said[f"{PREFIX}public-ip"] == node.address
            assert json.loads(said[f"{PREFIX}backend-data"])["VNI"] == 1
            assert (node.host / "run/flannel/subnet.env").read_text() == (
                f"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.{number}.1/24\n"
                "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
            )
        code, printed = look(kube, kubectl, running["n3"])
        assert (code, printed.splitlines()[0]) == (0, "n3 is healthy")
        for container in ("dataplane", "masq"):
            code, printed = running["n3"].execute(container, "flannelette", "status")
            assert (code, printed.splitlines()[0]) == (0, "n3 is healthy"), container
        code, printed = running["n3"].execute("lease", "flannelette", "status")
        assert code == 1
        assert "lease        ready" in printed
        assert printed.count(" away\n") == 2, "it cannot reach the others"
        pods = [make_netns(f"pod{number}") for number in (1, 2, 3)]
        for node, pod in zip(nodes, pods, strict=True):
            node.plug(pod)
        for (a, source), (b, target) in permutations(enumerate(pods, 1), 2):
            assert await sender_of_a_ping(source, target, f"10.244.{b}.2") == f"10.244.{a}.2"
        late_address = await sender_of_a_ping(pods[0], late.namespace, late.address)
        assert late_address == nodes[0].address, "masqueraded: the world knows no way to a pod"


async def test_the_containers_of_a_pod_take_less_memory_than_they_request(
    nodes: list[Kubelet], kube: ApiServer, kubectl: Kubectl
) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    kube.make_node("n1", "10.244.1.0/24")
    requested = {
        each["name"]: int(each["resources"]["requests"]["memory"].removesuffix("Mi")) * 1024
        for each in template(kube)["spec"]["containers"]
    }
    with nodes[0].start("flannel", template(kube)) as pod:
        await pod.until_ready()
        taken = pod.memory()
    assert sum(taken.values()) < MOST_MEMORY, taken
    assert all(taken[name] < requested[name] for name in requested), taken


async def test_a_container_that_hangs_fails_its_liveness_probe_and_is_well_after_its_restart(
    nodes: list[Kubelet], kube: ApiServer, kubectl: Kubectl
) -> None:
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    for number, node in enumerate(nodes[:2], 1):
        kube.make_node(node.node, f"10.244.{number}.0/24")
    with nodes[0].start("flannel", template(kube)) as pod, nodes[1].start("flannel", template(kube)) as other:
        for each in (pod, other):
            await each.until_ready()
        await eventually(lambda: nodes[0].namespace.ip("route", "show"), contains("10.244.2.0/24"))
        for container in ("lease", "dataplane", "masq"):
            pod.freeze(container)
            await pod.until(container, "livenessProbe", 0)
            assert "10.244.2.0/24" in nodes[0].namespace.ip("route", "show"), container
            pod.stop(container, signal.SIGKILL)  # as a kubelet does then
            pod.restart(container)
            await pod.until_ready()


def certs(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "flannelette.services.ctl.main", "certs", *words], check=True)


def hand_out(tls: Path, node: Kubelet) -> None:
    """The node's own certificates, and nobody else's."""
    there = node.host / "etc/flannelette/tls"
    there.mkdir(parents=True)
    for path in (tls / "ca.crt", *tls.glob(f"{node.node}-*")):
        shutil.copy(path, there)


def make_central(nodes: list[Kubelet], kube: ApiServer, kubectl: Kubectl, directory: Path) -> None:
    """The certificates, the overlay, and a way from every node to the lease service, which is on the first."""
    tls = str(directory / "tls")
    certs("ca", tls)
    certs("server", "lease", tls, "--address", "10.96.0.70")
    kubectl("apply", "-k", str(OVERLAYS / "central"))
    files = {"tls.crt": "lease-server.crt", "tls.key": "lease-server.key", "ca.crt": "ca.crt"}
    secret = ("create", "secret", "generic", "flannelette-lease", "--namespace=kube-flannel")
    kubectl(*secret, *(f"--from-file={key}={tls}/{name}" for key, name in files.items()))
    for node in nodes:
        certs("node", node.node, tls)
        hand_out(Path(tls), node)
        proxy(node, {"10.96.0.1:443": "172.18.255.1:6443", "10.96.0.70:7070": f"{nodes[0].address}:7070"})


async def test_nodes_go_to_central_lease_services_and_back_one_by_one(
    nodes: list[Kubelet], kube: ApiServer, kubectl: Kubectl, tmp_path: Path
) -> None:
    first, second, third = nodes
    kubectl("apply", "-k", str(OVERLAYS / "per-node"))
    own = template(kube)
    for number, node in enumerate(nodes, 1):
        kube.make_node(node.node, f"10.244.{number}.0/24")
    with ExitStack() as stack:
        running = {n: stack.enter_context(n.start("own", own)) for n in (first, second)}
        for pod in running.values():
            await pod.until_ready()
        make_central(nodes, kube, kubectl, tmp_path)
        central = template(kube)
        lease = stack.enter_context(first.start("lease", template(kube, LEASE)))
        await lease.until_ready()
        for node, pod in running.items():
            pod.end()
            running[node] = stack.enter_context(node.start("central", central))
            await running[node].until_ready()
        kubectl("apply", "-k", str(OVERLAYS / "per-node"))
        for node, pod in running.items():
            pod.end()
            running[node] = stack.enter_context(node.start("own-again", template(kube)))
            await running[node].until_ready()
        lease.end()
        stack.enter_context(third.start("own", template(kube)))
        for node in (first, second):
            await eventually(partial(node.namespace.ip, "route", "show"), contains("10.244.3.0/24"))


async def test_the_central_overlay_on_a_control_plane_and_two_nodes(
    nodes: list[Kubelet], kube: ApiServer, kubectl: Kubectl, make_netns: NamespaceMaker, tmp_path: Path
) -> None:
    for number, node in enumerate(nodes, 1):
        kube.make_node(node.node, f"10.244.{number}.0/24")
    make_central(nodes, kube, kubectl, tmp_path)
    with ExitStack() as stack:
        lease = stack.enter_context(nodes[0].start("lease", template(kube, LEASE)))
        running = [stack.enter_context(node.start("flannel", template(kube))) for node in nodes]
        await lease.until_ready()
        for node, pod in zip(nodes, running, strict=True):
            await pod.until_ready()
            await eventually(partial(kube.condition, node.node), is_up)
            assert kube.annotations(node.node)[f"{PREFIX}public-ip"] == node.address
        first, last = make_netns("pod1"), make_netns("pod3")
        nodes[0].plug(first)
        nodes[2].plug(last)
        assert await sender_of_a_ping(first, last, "10.244.3.2") == "10.244.1.2"

        lease.stop("lease", signal.SIGKILL)
        await eventually(lambda: running[2].execute("dataplane", "flannelette", "status")[0], equals(1))
        for container in ("dataplane", "masq"):
            await running[2].until(container, "readinessProbe", 200)
        assert await sender_of_a_ping(last, first, "10.244.1.2") == "10.244.3.2"
        lease.restart("lease")
        await running[2].until_ready()
