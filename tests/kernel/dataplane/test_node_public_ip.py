"""The annotation `node-public-ip` of a Node in a real API server: it chooses the interface, as --public-ip does."""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import VXLAN, Cluster, Running, cluster_of
from tests.hosts.namespaces import NetworkNamespace
from tests.kubernetes.api_server import ApiServer, serving
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.waiting import eventually

ANNOTATION: Final = "annotation flannel.alpha.coreos.com/node-public-ip"
BY_DEFAULT: Final = ("eth0", "10.99.0.11", "has the default route")
BY_CHOICE: Final = ("eth1", "10.98.0.11", f"has the address 10.98.0.11 ({ANNOTATION})")


class KubeCluster(Cluster):
    """A node n1 whose lease service keeps its leases in Kubernetes."""

    kube: ApiServer

    def start_leases(self) -> ServiceProcess:
        return ServiceProcess(self.directory, *self.store(), "--node=n1")

    def store(self) -> list[str]:
        access = f"--kubeconfig-file={self.kube.kubeconfig()}"
        return ["--kube-subnet-mgr", access, f"--net-config-path={self.network_file}"]


class RelayedCluster(KubeCluster):
    """The same through a relay."""

    def start_leases(self) -> ServiceProcess:
        (self.directory / "above").mkdir()
        self.above = ServiceProcess(self.directory / "above", *self.store(), "--central")
        return ServiceProcess(self.directory, "--store=relay", "--node=n1", f"--upstream={self.above.address}")


def cluster_with(kind: type[KubeCluster], namespace: NetworkNamespace, kube: ApiServer) -> Iterator[KubeCluster]:
    kube.make_node("n1", "10.5.27.0/24")
    here: type[KubeCluster] = type("Here", (kind,), {"kube": kube})
    with cluster_of(here, namespace, VXLAN) as made:
        made.ip("link add eth1 type veth peer eth1-far")
        for name in ("eth1", "eth1-far"):
            made.ip(f"link set {name} up")
        made.ip("addr add 10.98.0.11/16 dev eth1")
        yield made
        if isinstance(made, RelayedCluster):
            made.above.__exit__(None, None, None)


@pytest.fixture(scope="module")
def shared_kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory) as server:
        yield server


@pytest.fixture
def cluster(netns: NetworkNamespace, kube: ApiServer) -> Iterator[KubeCluster]:
    yield from cluster_with(KubeCluster, netns, kube)


@pytest.fixture
def relayed(netns: NetworkNamespace, kube: ApiServer) -> Iterator[KubeCluster]:
    yield from cluster_with(RelayedCluster, netns, kube)


async def stands_on(cluster: KubeCluster, running: Running, underlay: tuple[str, str, str]) -> None:
    """Returns when that is so in status, in the kernel and in what peers are told."""
    interface, address, reason = underlay
    said = ""
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                status = await running.status()
                told = cluster.kube.annotations("n1").get("flannel.alpha.coreos.com/public-ip")
                said = f"{status}\n{told}"
                chosen = (status.underlay.interface, *status.underlay.addresses, status.underlay.reason)
                if status.ready and (*chosen, told) == (interface, address, reason, address):
                    break
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not on {underlay}: {said}\n{running.log}") from None
    assert f" local {address} dev {interface} " in cluster.ip("-d link show flannel.1")


async def until_it_says(running: Running, words: str) -> pb.Status:
    return await eventually(running.status, lambda status: words in "; ".join(status.reasons))


async def follows_the_annotation(cluster: KubeCluster) -> None:
    cluster.kube.annotate("n1", node_public_ip="10.98.0.11")
    async with cluster.dataplane() as running:
        await stands_on(cluster, running, BY_CHOICE)
        assert running.log.count("underlay chosen") == 1, "it never stood on anything else"
        cluster.kube.annotate("n1", node_public_ip=None)
        await stands_on(cluster, running, BY_DEFAULT)
        cluster.kube.annotate("n1", node_public_ip="10.98.0.11")
        await stands_on(cluster, running, BY_CHOICE)
        assert running.log.count("underlay chosen") == 3


async def test_the_annotation_chooses_the_interface_and_is_followed_while_it_runs(cluster: KubeCluster) -> None:
    await follows_the_annotation(cluster)


async def test_the_annotation_is_handed_through_by_a_relay(relayed: KubeCluster) -> None:
    await follows_the_annotation(relayed)


async def test_an_annotation_that_changes_while_the_lease_service_is_away_is_followed_when_it_is_back(
    cluster: KubeCluster,
) -> None:
    async with cluster.dataplane() as running:
        await stands_on(cluster, running, BY_DEFAULT)
        cluster.leases.kill()
        await until_it_says(running, "lease")
        cluster.kube.annotate("n1", node_public_ip="10.98.0.11")
        cluster.leases = cluster.start_leases()
        await stands_on(cluster, running, BY_CHOICE)


async def test_the_annotation_wins_over_public_ip_and_chooses_no_interface_beside_an_interface_flag(
    cluster: KubeCluster,
) -> None:
    cluster.kube.annotate("n1", node_public_ip="10.98.0.11")
    async with cluster.dataplane("--public-ip=10.99.0.11") as running:
        await stands_on(cluster, running, BY_CHOICE)
    async with cluster.dataplane("--iface=eth0") as running:
        status = await running.until()
        assert status.underlay.reason == f"--iface eth0; public address 10.98.0.11 ({ANNOTATION})"
        assert (list(status.underlay.addresses), list(status.underlay.public_addresses)) == (
            ["10.98.0.11"],
            ["10.98.0.11"],
        ), "it is an address of this host, so it is the tunnel's source, as with flanneld"
        assert " local 10.98.0.11 dev eth0 " in cluster.ip("-d link show flannel.1")
        assert cluster.kube.annotations("n1")["flannel.alpha.coreos.com/public-ip"] == "10.98.0.11"


async def test_an_annotation_that_cannot_be_followed_is_told_and_waited_out(cluster: KubeCluster) -> None:
    cluster.kube.annotate("n1", node_public_ip="eth1")
    async with cluster.dataplane() as running:
        await until_it_says(running, f"{ANNOTATION} is 'eth1', which is not an IPv4 address: correct it")
        assert cluster.ip("link show type vxlan") == "", "it does not start on an interface that nobody has chosen"
        cluster.kube.annotate("n1", node_public_ip="10.98.0.11")
        await stands_on(cluster, running, BY_CHOICE)
        cluster.kube.annotate("n1", node_public_ip="192.0.2.1")
        status = await until_it_says(running, f"no interface has the address 192.0.2.1 of {ANNOTATION}")
        assert status.underlay.interface == "eth1", "the last one stays in force"
        assert cluster.kube.annotations("n1")["flannel.alpha.coreos.com/public-ip"] == "10.98.0.11"
        cluster.ip("addr add 192.0.2.1/32 dev eth0")
        await stands_on(cluster, running, ("eth0", "192.0.2.1", f"has the address 192.0.2.1 ({ANNOTATION})"))


async def test_after_a_reboot_in_an_outage_the_node_stands_where_the_annotation_has_put_it(
    cluster: KubeCluster,
) -> None:
    cluster.kube.annotate("n1", node_public_ip="10.98.0.11")
    async with cluster.dataplane() as running:
        await stands_on(cluster, running, BY_CHOICE)
        await running.end()
    cluster.leases.kill()
    cluster.ip("link del flannel.1")
    async with cluster.dataplane() as running:
        status = await running.until(ready=False, mtu=1450)
        assert (status.underlay.interface, status.underlay.reason) == (BY_CHOICE[0], BY_CHOICE[2])
