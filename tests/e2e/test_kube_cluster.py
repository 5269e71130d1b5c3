"""Hosts of a Kubernetes cluster: a real kube-apiserver, and on each host a lease service and a dataplane."""

import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.nodes import is_up
from tests.services.lease import ServiceProcess
from tests.waiting import contains, equals, eventually, lacks

NETWORK = '{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}'
FLANNELDS_MAC = "c6:d2:32:6f:8f:44"
PORT = 7


class Host:
    """A node: eth0 on the switch, a lease service of its own as in a DaemonSet, and a pod's address on lo."""

    def __init__(self, number: int, namespace: NetworkNamespace, directory: Path, kube: ApiServer) -> None:
        self.node = f"n{number}"
        self.namespace = namespace
        self.directory = directory
        self.public = f"172.18.0.{number}"
        self.pod = f"10.244.{number}.9"
        (directory / "net-conf.json").write_text(NETWORK)
        self.lease_arguments = (
            "--kube-subnet-mgr",
            f"--node={self.node}",
            f"--kubeconfig-file={kube.kubeconfig()}",
            f"--net-config-path={directory}/net-conf.json",
        )

    def arguments(self, *more: str) -> list[str]:
        """Of the dataplane."""
        directory = self.directory
        places = (
            f"--socket-dir={directory}",
            f"--subnet-file={directory}/subnet.env",
            f"--state-dir={directory}/state",
        )
        return [f"--node={self.node}", *places, *more]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Running]:
        """Both services."""
        with ServiceProcess(self.directory, *self.lease_arguments):
            running = Running(self, (), ())
            try:
                yield running
            finally:
                await running.end()

    def ip(self, line: str) -> str:
        return self.namespace.ip(*line.split()).strip()

    def mac(self) -> str:
        """Of flannel.1."""
        return self.ip("-br link show flannel.1").split()[2]

    def reaches(self, other: "Host") -> bool:
        """Whether a packet from our pod arrives at the other's, with its source."""
        with ExitStack() as stack:
            sockets = []
            for host in (other, self):
                with host.namespace.inside():
                    sockets.append(stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
                sockets[-1].bind((host.pod, PORT))
                sockets[-1].settimeout(1)
            sockets[1].sendto(self.node.encode(), (other.pod, PORT))
            try:
                return sockets[0].recvfrom(100) == (self.node.encode(), (self.pod, PORT))
            except TimeoutError:
                return False


@pytest.fixture
def hosts(make_netns: NamespaceMaker, kube: ApiServer) -> Iterator[list[Host]]:
    """Three on one switch, not registered in Kubernetes yet."""
    switch = make_netns("switch")
    switch.ip("link", "add", "br0", "type", "bridge")
    switch.ip("link", "set", "br0", "up")
    with ExitStack() as stack:
        made = []
        for number in (1, 2, 3):
            namespace = make_netns(f"kube{number}")
            port = f"port{number}"
            switch.ip("link", "add", port, "type", "veth", "peer", "eth0", "netns", namespace.name)
            switch.ip("link", "set", port, "master", "br0", "up")
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
            host = Host(number, namespace, directory, kube)
            for line in (
                "link set eth0 up",
                f"address add {host.public}/16 dev eth0",
                "route add default via 172.18.255.1",
                f"address add {host.pod}/32 dev lo",
            ):
                host.ip(line)
            made.append(host)
        yield made


async def test_a_kubernetes_cluster_from_its_first_node_to_its_last(hosts: list[Host], kube: ApiServer) -> None:
    prefix = "flannel.alpha.coreos.com/"
    first, second, late = hosts
    held = f'{{"VNI":1,"VtepMAC":"{FLANNELDS_MAC}"}}'
    before = {
        "kube-subnet-manager": "true",
        "backend-type": "vxlan",
        "backend-data": held,
        "public-ip": first.public,
    }
    kube.make_node("n1", "10.244.1.0/24", annotations={f"{prefix}{key}": text for key, text in before.items()})
    kube.make_node("n2", "10.244.2.0/24")
    second.ip("address add 172.18.1.2/16 dev eth0")
    kube.annotate("n2", public_ip_overwrite="172.18.1.2")
    kube.make_node("n3")
    async with AsyncExitStack() as stack:
        one, two, three = [await stack.enter_async_context(host.running()) for host in hosts]
        await one.until(peers=1)
        await two.until(peers=1)
        await eventually(lambda: first.reaches(second), equals(True))
        await eventually(lambda: second.reaches(first), equals(True))
        assert first.mac() == FLANNELDS_MAC, "handed back: the peers of the flanneld before know this one"
        towards_second = first.namespace.run("bridge", "fdb", "show", "dev", "flannel.1")
        assert f"{second.mac()} dst 172.18.1.2 self permanent" in towards_second, "what the operator overwrote"
        assert second.mac() in kube.annotations("n2")[f"{prefix}backend-data"]
        await eventually(lambda: [kube.condition(node) for node in ("n1", "n2")], lambda seen: all(map(is_up, seen)))

        await eventually(three.reasons, contains("node n3 has no podCIDR yet"))
        assert kube.condition("n3") is None
        kube.assign("n3", "10.244.3.0/24")
        await three.until(peers=2)
        await one.until(peers=2)
        await eventually(lambda: late.reaches(first), equals(True))
        await eventually(lambda: second.reaches(late), equals(True))
        await eventually(lambda: kube.condition("n3"), is_up)

        second.ip("link del flannel.1")
        await eventually(lambda: second.ip("-br link"), contains("flannel.1"))
        await two.until(peers=2)
        assert second.mac() in kube.annotations("n2")[f"{prefix}backend-data"]
        await eventually(lambda: second.reaches(first), equals(True))

        kube.delete_node("n3")
        await one.until(peers=1)
        await eventually(lambda: first.ip("route show"), lacks("10.244.3.0"))


async def test_a_missing_network_file_and_no_way_to_kubernetes_end_the_service(tmp_path: Path) -> None:
    for number, (argument, sentence) in enumerate(
        (
            (f"--net-config-path={tmp_path}/none", f"there is no network configuration {tmp_path}/none"),
            ("--kube-annotation-prefix=nodots", "--kube-annotation-prefix is 'nodots'"),
            ("--kube-api-url=nonsense", "--kube-api-url is 'nonsense'"),
        )
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        flags = ("--kube-subnet-mgr", "--node=a", "--kube-api-url=http://127.0.0.1:1", argument)
        with ServiceProcess(directory, *flags) as process:
            assert process.wait() == 1
            assert f"flannelette-lease: {sentence}" in process.log.read_text()
