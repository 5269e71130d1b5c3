"""Nodes of a Kubernetes cluster on one switch: each with a kubelet of ours, and a way to the real API server.

A node reaches the API server and other services as in any cluster, at their cluster addresses: a rule does what
kube-proxy would.
"""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kubernetes.api_server import ApiServer, Document
from tests.kubernetes.kubelet import Kubelet

API_SERVER: Final = "172.18.255.1"
CLUSTER_ADDRESS: Final = "10.96.0.1"
"""Of the API server; its certificate names it."""
DAEMON_SET: Final = "/apis/apps/v1/namespaces/kube-flannel/daemonsets/kube-flannel-ds"


def template(kube: ApiServer, path: str = DAEMON_SET) -> Document:
    """What a pod is made from, as the API server has completed it."""
    found: Document = kube.call("GET", path)["spec"]["template"]
    return found


def is_up(condition: Document | None) -> bool:
    """Whether this condition of a node says that its network works."""
    return condition is not None and (condition["status"], condition["reason"]) == ("False", "FlannelIsUp")


@contextmanager
def nodes_of(kube: ApiServer, make_netns: NamespaceMaker, count: int) -> Iterator[list[Kubelet]]:
    """n1, n2, ... at 172.18.0.1, .2, ..., not registered yet."""
    switch = make_netns("switch")
    switch.ip("link", "add", "br0", "type", "bridge")
    switch.ip("link", "set", "br0", "up")
    with ExitStack() as stack:
        stack.enter_context(_api_server_on(switch, kube))
        made = []
        for number in range(1, count + 1):
            namespace, address = make_netns(f"n{number}"), f"172.18.0.{number}"
            _plug(switch, f"port{number}", namespace)
            namespace.run("sysctl", "-qw", "net.ipv4.ip_forward=1")  # kubeadm takes no node without it
            for line in (
                "link set eth0 up",
                f"address add {address}/16 dev eth0",
                f"route add default via {API_SERVER}",
            ):
                namespace.ip(*line.split())
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
            made.append(Kubelet(f"n{number}", address, namespace, directory, kube))
            proxy(made[-1], {f"{CLUSTER_ADDRESS}:443": f"{API_SERVER}:6443"})
        yield made


def proxy(kubelet: Kubelet, services: Mapping[str, str]) -> None:
    """What kube-proxy does on a node: from the cluster's addresses to those where a service is."""
    _nft(*kubelet.namespace.command(), rules=_table("proxy", "output", services))


@contextmanager
def _api_server_on(switch: NetworkNamespace, kube: ApiServer) -> Iterator[None]:
    """It listens on this namespace's loopback only."""
    subprocess.run(
        ["ip", "link", "add", "nodes", "type", "veth", "peer", "name", "port0", "netns", switch.name], check=True
    )
    try:
        for command in (
            f"ip address add {API_SERVER}/16 dev nodes",
            "ip link set nodes up",
            f"ip -n {switch.name} link set port0 master br0 up",
        ):
            subprocess.run(command.split(), check=True)
        Path("/proc/sys/net/ipv4/conf/nodes/route_localnet").write_text("1")
        _nft(rules=_table("apiserver", "prerouting", {f"{API_SERVER}:6443": f"127.0.0.1:{kube.port}"}))
        yield
    finally:
        subprocess.run(["ip", "link", "delete", "nodes"], check=True)
        subprocess.run(["nft", "delete", "table", "ip", "apiserver"], check=False)


def _plug(switch: NetworkNamespace, port: str, namespace: NetworkNamespace) -> None:
    switch.ip("link", "add", port, "type", "veth", "peer", "eth0", "netns", namespace.name)
    switch.ip("link", "set", port, "master", "br0", "up")


def _table(name: str, hook: str, services: Mapping[str, str]) -> str:
    rules = "\n".join(
        f"ip daddr {service.split(':')[0]} tcp dport {service.split(':')[1]} dnat to {place}"
        for service, place in services.items()
    )
    chain = f"chain {hook} {{\ntype nat hook {hook} priority -100\n{rules}\n}}"
    return f"table ip {name}\ndelete table ip {name}\ntable ip {name} {{\n{chain}\n}}\n"


def _nft(*around: str, rules: str) -> None:
    subprocess.run([*around, "nft", "-f", "-"], input=rules, text=True, check=True)
