"""A node with a dataplane, and pods that real CNI plugins have made."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from lab.pings import Pinger
from lab.stream import Path as Way
from lab.stream import Stream
from tests.hosts.dataplane import Cluster, Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kubernetes.kubelet import find_plugins
from tests.patience import PATIENCE
from tests.tools import find_tool

_DELEGATE = {"hairpinMode": True, "isDefaultGateway": True}


class Node:
    """A node with a dataplane, and pods that CNI's plugins make."""

    def __init__(self, cluster: Cluster, running: Running, make_netns: NamespaceMaker) -> None:
        self.cluster = cluster
        self.running = running
        self.pods: list[tuple[NetworkNamespace, str, str]] = []
        """Each with its address, and the name of the host's end of its interface."""
        self.make_netns = make_netns

    @property
    def state(self) -> Path:
        return self.cluster.directory / "var/lib/cni"

    def ip(self, line: str) -> str:
        return self.cluster.ip(line)

    def add_pod(self) -> None:
        """As a container runtime does."""
        pod = self.make_netns()
        result = json.loads(self.cni("add", pod))
        veth = next(each["name"] for each in result["interfaces"] if each["name"].startswith("veth"))
        self.pods.append((pod, result["ips"][0]["address"].partition("/")[0], veth))

    def configure(self) -> None:
        """Writes flannel's CNI configuration, with the directories of this node."""
        directory = self.cluster.directory
        self.state.mkdir(parents=True, exist_ok=True)
        plugin = {"type": "flannel", "subnetFile": str(directory / "subnet.env"), "delegate": _DELEGATE}
        plugin["dataDir"] = str(directory / "var/lib/cni/flannel")
        (directory / "net.d").mkdir(exist_ok=True)
        configuration = {"name": "cbr0", "cniVersion": "0.3.1", "plugins": [plugin]}
        if not (file := directory / "net.d/10-flannel.conflist").exists():
            file.write_text(json.dumps(configuration))

    def cni(self, verb: str, pod: NetworkNamespace) -> str:
        """What the plugins print that add a pod, or delete one."""
        with self.plugins(verb, pod) as process:
            out, complaint = process.communicate()
        assert process.returncode == 0, out + complaint
        return out

    def plugins(self, verb: str, pod: NetworkNamespace) -> "subprocess.Popen[str]":
        """The plugins that do it, in a session of their own."""
        self.configure()
        directory = self.cluster.directory
        script = f"mount --bind {directory}/var/lib /var/lib; exec {find_tool('cnitool')} {verb} cbr0 {pod.path}"
        where = {"CNI_PATH": str(find_plugins()), "NETCONFPATH": str(directory / "net.d")}
        return subprocess.Popen(
            self.cluster.namespace.command("unshare", "-m", "sh", "-euc", script),
            env={**os.environ, **where},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def pinged(self) -> Iterator[Stream]:
        """100 pings a second from the first pod to the second, and back."""
        (one, here, _), (two, there, _) = self.pods[:2]
        with Pinger(one, 4) as away, Pinger(two, 4) as back:
            yield Stream([Way("p1", "p2", away, ip_address(there)), Way("p2", "p1", back, ip_address(here))])

    async def flows(self) -> bool:
        with self.pinged() as stream:
            async with stream:
                await asyncio.sleep(0.25)
        return not stream.lost

    async def until_it_flows(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self.flows():
                pass

    async def findings(self) -> list[pb.Finding]:
        return list((await self.running.status()).findings)

    async def until_found(self, *checks: str, pause: float = 0.05, weight: bool | None = None) -> list[pb.Finding]:
        """What is found once it is of these checks alone, and all of it broken, or none."""
        found: list[pb.Finding] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while (found := await self.findings()) or checks:
                    weighs = weight is None or all(each.broken is weight for each in found)
                    if [each.check for each in found] == [*checks] and weighs:
                        break
                    await asyncio.sleep(pause)
                    if pause > 1:  # nothing tells of it, but the next audit
                        await self.running.resync()
        except TimeoutError:
            raise AssertionError(f"{found}\n{self.running.log}") from None
        return found

    async def looked(self) -> None:
        """Returns once what is there now was looked at twice: so is a fault that this makes, before it is told."""
        self.cluster.run("sysctl -qw net.ipv4.ip_forward=0")
        await self.running.resync()
        await self.until_found("forwarding-off")
        self.cluster.run("sysctl -qw net.ipv4.ip_forward=1")
        await self.running.resync()
        await self.until_found()

    async def lost_outside(self, seconds: float) -> int:
        """How many pings of the first pod to an address outside its subnet are lost."""
        pod, _, _ = self.pods[0]
        with Pinger(pod, 4) as pinger:
            stream = Stream([Way("pod", "host", pinger, ip_address("10.99.0.11"))])
            async with stream:
                await asyncio.sleep(seconds)
        return len(stream.lost)

    async def answers(self, address: str) -> bool:
        """Whether a pod answers all pings of this host in a quarter of a second."""
        with Pinger(self.cluster.namespace, 4) as pinger:
            stream = Stream([Way("host", "pod", pinger, ip_address(address))])
            async with stream:
                await asyncio.sleep(0.25)
        return not stream.lost

    def master_of(self, veth: str) -> str:
        (link,) = json.loads(self.ip(f"-j -d link show {veth}"))
        assert isinstance(link, dict)
        return str(link.get("master", ""))


def flags(cluster: Cluster) -> tuple[str, ...]:
    return f"--cni-state-dir={cluster.directory}/var/lib/cni", "--audit-interval=600"
