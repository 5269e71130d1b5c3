"""The cluster of the nodes: kubeadm makes it, the manifests of this tree give it a network."""

import asyncio
import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from lab import topology
from lab.build import CommandFailed, carry_out
from lab.cluster import LabFailed, Pod
from lab.kubernetes import install, parts
from lab.kubernetes.cgroups import remove_groups
from lab.kubernetes.node import Node, run
from lab.kubernetes.options import Options
from lab.kubernetes.parts import CACHE, HERE, WORK
from lab.topology import OUTSIDE, Address, Host
from lab.vm import PATIENCE, is_guest

_READY_SECONDS: Final = 240.0 * PATIENCE
POLL_SECONDS: Final = 5.0 if is_guest() else 0.3
"""Pause between two looks at the cluster; a kubectl takes seconds of a virtual machine."""
_IGNORE: Final = "--ignore-preflight-errors=all"  # modules and cgroups are those of a machine that is not ours alone

_UNREACHED: Final = ("The connection to the server ", "Unable to connect to the server: dial tcp ")
"""How kubectl begins a complaint about an API server that it does not reach."""

_LIKE_NODE: Final = json.dumps(
    {
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "kube-proxy",
                            "volumeMounts": [{"name": "alternatives", "mountPath": "/etc/alternatives"}],
                        }
                    ],
                    "volumes": [{"name": "alternatives", "hostPath": {"path": "/etc/alternatives"}}],
                }
            }
        }
    }
)
"""Configuration of kube-proxy: the kind of iptables that the node has."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod, as the API server has it."""

    node: str
    name: str
    id: str
    is_ready: bool


class Cluster:
    """Grows step by step. Its processes end with ours; `stop` removes the rest."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._hosts = tuple(Host(number) for number in range(1, options.nodes + 1))
        self.place = WORK / "run"
        self.nodes = [Node(host, self.place / host.name, options) for host in self._hosts]

    @property
    def config(self) -> Path:
        """The path of the kubeconfig."""
        return self.place / "admin.conf"

    def kubectl_words(self) -> tuple[str, ...]:
        """`kubectl`, from the outside host."""
        return OUTSIDE.command(str(CACHE / "bin" / "kubectl"), f"--kubeconfig={self.config}")

    async def kubectl_at_once(self, *words: str) -> str:
        """What kubectl prints. Raises CommandFailed, also where no API server takes connections."""
        return await run(*self.kubectl_words(), *words)

    async def kubectl(self, *words: str) -> str:
        """What kubectl prints; an API server that takes no connections is waited for. Raises CommandFailed."""
        end = time.monotonic() + _READY_SECONDS
        while True:
            try:
                return await self.kubectl_at_once(*words)
            except CommandFailed as error:
                if not takes_no_connections(str(error)) or time.monotonic() > end:
                    raise
            await asyncio.sleep(POLL_SECONDS)

    async def apply(self, manifest: str) -> None:
        """Applies objects that are written as YAML or JSON. Raises CommandFailed."""
        file = self.place / "applied.yaml"
        file.write_text(manifest)
        await self.kubectl("apply", "-f", str(file))

    async def build(self) -> None:
        """Makes namespaces and wires, and the nodes' files."""
        shutil.rmtree(self.place, ignore_errors=True)
        remove_groups()
        await carry_out(topology.underlay(self._hosts))
        if 6 in self._options.versions:
            await carry_out(topology.underlay_v6(self._hosts))
        if 4 not in self._options.versions:
            await carry_out(map(topology.without_ipv4, self._hosts))

    async def import_images(self) -> Path:
        """A directory of containerd's with all images, made on a node once; the tree's anew when it changes."""
        made, stamp, digests = WORK / "containerd", WORK / "containerd.stamp", parts.image_digests()
        known = stamp.read_text().split() if stamp.exists() else ()
        missing = [image for image, digest in digests.items() if digest not in known]
        if not missing:
            return made
        node, start = Node(self._hosts[0], self.place / "import", self._options), made
        if parts.IMAGES[0] in missing:
            missing, start = list(parts.IMAGES), self.place / "empty"
            start.mkdir(parents=True)
        node.furnish(self._hosts, start)
        try:
            await node.boot()
            for image in missing:
                importing = ("ctr", "-n", "k8s.io", "images", "import", "-")
                try:
                    await node.run(*importing, file=image)
                except CommandFailed:  # containerd has meanwhile collected layers of the image that this one replaces
                    await node.run(*importing, file=image)
        finally:
            node.fail()
        stamp.unlink(missing_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        shutil.move(node.place / "containerd", made)
        shutil.rmtree(node.place)
        stamp.write_text("\n".join(digests.values()))
        return made

    async def boot(self, images: Path) -> None:
        """Starts every node of the cluster."""
        for node in self.nodes:
            node.furnish(self._hosts, images)
        await asyncio.gather(*(node.boot() for node in self.nodes))

    async def join(self) -> None:
        """Makes a cluster of the nodes."""
        first, *others = self.nodes
        await first.run(
            *("kubeadm", "init", "--config=/etc/kubeadm/init.yaml", "--skip-phases=addon/coredns", _IGNORE)
        )
        self.config.write_text(await first.run("cat", "/etc/kubernetes/admin.conf"))
        await asyncio.gather(
            *(node.run("kubeadm", "join", "--config=/etc/kubeadm/join.yaml", _IGNORE) for node in others)
        )
        if self._options.firewall == "iptables-legacy":
            await self.kubectl("patch", "daemonset", "kube-proxy", "--namespace=kube-system", f"--patch={_LIKE_NODE}")

    async def add_node(self) -> Node:
        """Makes one more node, which joins."""
        host = Host(len(self.nodes) + 1)
        node = Node(host, self.place / host.name, self._options)
        self.nodes.append(node)
        node.furnish((*self._hosts, host), await self.import_images())
        await carry_out([topology.Batch("", (f"netns add {host.pod.name}",))])
        await node.plug()
        await node.boot()
        await node.run("kubeadm", "join", "--config=/etc/kubeadm/join.yaml", _IGNORE)
        return node

    async def remove_node(self, node: Node) -> None:
        """Ends a node for good."""
        self.nodes.remove(node)
        node.fail()
        await node.unplug()
        await carry_out([topology.Batch("", (f"netns delete {node.host.pod.name}",))])
        shutil.rmtree(node.place)

    async def install(self) -> None:
        """Installs Flannelette as docs/kubernetes.md says; returns when it is ready on every node."""
        options = self._options
        if options.overlay == "helm":
            await install.by_helm(self.kubectl, options, self.config)
        else:
            if options.overlay == "central":
                address = install.lease_address(options)
                await install.certify(self.kubectl, self.nodes, self.place / "tls", address)
            await install.by_kustomize(self.kubectl, options, self.place / "overlay")
        await self.until_rolled_out()

    async def install_flannel(self) -> None:
        """Installs kube-flannel in the place of Flannelette; returns when it is ready on every node."""
        if self._options.overlay == "helm":
            await install.flannels_chart(self.kubectl, self._options, self.config)
        else:
            await install.flannels_manifest(self.kubectl, self._options, self.flannel)
        await self.until_rolled_out()

    async def take_over(self) -> None:
        """Replaces kube-flannel by Flannelette; returns when that is ready on every node."""
        if self._options.overlay == "helm":
            await install.upgrade_from_flannels(self.config)
        else:
            await self.kubectl("apply", "-k", str(install.DEPLOY / "overlays" / "in-place"))
        await self.until_rolled_out()

    async def give_back(self) -> None:
        """Replaces Flannelette by kube-flannel again, and removes what then remains on the nodes."""
        if self._options.overlay == "helm":
            await run(*install.helm(self.config), "rollback", "flannel", "--namespace", install.NAMESPACE)
        else:
            await self.kubectl("apply", "-k", str(self.flannel))
        await self.until_rolled_out()
        await install.clean_up(self.kubectl, self.nodes)

    @property
    def flannel(self) -> Path:
        """An overlay upon kube-flannel's manifests."""
        return self.place / "flannel"

    async def until_rolled_out(self) -> None:
        """Returns when every node has the pod that the DaemonSet describes, and it is ready. Raises CommandFailed."""
        words = ("rollout", "status", "--namespace", install.NAMESPACE, "daemonset/kube-flannel-ds")
        await self.kubectl(*words, f"--timeout={_READY_SECONDS:.0f}s")

    async def start_pods(self) -> list[Pod]:
        """Makes a pod on each node; returns when they are ready."""
        await self.kubectl("apply", "-f", str(HERE / "pods.yaml"))
        await self.kubectl("rollout", "status", "daemonset/web", f"--timeout={_READY_SECONDS:.0f}s")
        return await self.pods()

    async def pods(self) -> list[Pod]:
        """The pods of the lab, first all of IPv4, with their namespaces under the names that the lab knows."""
        nodes = {node.name: node for node in self.nodes}
        found = []
        for pod in await self._list_pods("default", "app=web"):
            node = nodes[pod["spec"]["nodeName"]]
            await node.name_pod(_id_of(pod["status"]["containerStatuses"][0]))
            found += [Pod(node.host, ip_address(each["ip"])) for each in pod["status"]["podIPs"]]
        return sorted(found, key=lambda pod: (pod.address.version, pod.host.number))

    async def service(self) -> list[Address]:
        """The addresses of the Service of these pods."""
        found = json.loads(await self.kubectl("get", "service", "web", "--output=json"))
        return [ip_address(address) for address in found["spec"]["clusterIPs"]]

    async def containers(self) -> list[Container]:
        """Flannelette's and the lab's."""
        pods = await self._list_pods(install.NAMESPACE) + await self._list_pods("default", "app=web")
        return [
            Container(pod["spec"]["nodeName"], status["name"], _id_of(status), status["ready"])
            for pod in pods
            for status in pod["status"].get("containerStatuses", ())
        ]

    async def until_replaced(self, old: Iterable[Container]) -> None:
        """Returns when each has a successor that is ready. Raises LabFailed."""
        former = {(each.node, each.name): each.id for each in old}
        waiting = list(former)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while waiting := await self._without_successor(former):  # noqa: ASYNC110 - it happens in other processes
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            names = ", ".join(f"{name} of {node}" for node, name in waiting)
            raise LabFailed(f"not ready again after {_READY_SECONDS:.0f} s: {names}") from None

    def stop(self) -> None:
        """Ends every node. The kernel drops the namespaces with the last process in them."""
        for node in self.nodes:
            node.fail()
        remove_groups()
        shutil.rmtree(self.place, ignore_errors=True)

    async def _without_successor(self, former: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
        try:
            now = {(each.node, each.name): each for each in await self.containers()}
        except CommandFailed:  # the API server is on a node too
            return list(former)
        return [key for key, id_ in former.items() if key not in now or not now[key].is_ready or now[key].id == id_]

    async def _list_pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        words = ("get", "pods", "--namespace", namespace, "--selector", selector, "--output=json")
        items: list[dict[str, Any]] = json.loads(await self.kubectl(*words))["items"]
        return items


def takes_no_connections(complaint: str) -> bool:
    """Whether kubectl says that it has reached no API server, so that the command has changed nothing."""
    return any(words in complaint for words in _UNREACHED)


def _id_of(status: Mapping[str, Any]) -> str:
    """A container's, as containerd knows it."""
    return str(status.get("containerID", "")).removeprefix("containerd://")
