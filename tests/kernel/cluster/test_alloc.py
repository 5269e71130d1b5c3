"""alloc: the lease, `subnet.env` and the rules are those of a real flanneld, and the kernel gets nothing else."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.flannel.real import Flanneld, SharedStore, require_flanneld
from tests.hosts.dataplane import OWN_SUBNET, cluster_of
from tests.hosts.masq import Host, entered, use_iptables
from tests.hosts.namespaces import NetworkNamespace
from tests.services import flanneld_command
from tests.services.masq import masq_on
from tests.waiting import contains, eventually

ALLOC: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"alloc"}}'
SUBNETS: Final = "/coreos.com/network/subnets"
JUMPS: Final = ("-j FLANNEL-POSTRTG", "-j FLANNEL-FWD")
PEER: Final = f"{SUBNETS}/10.5.53.0-24"


@dataclass(frozen=True, slots=True)
class State:
    """What a node has, and shows to others."""

    leases: list[str]
    """Keys and values in etcd."""
    subnet_env: str
    rules: list[str]
    kernel: list[Any]


@dataclass(frozen=True, slots=True)
class AllocNode:
    """A host with an etcd, for a real flanneld and for us."""

    cluster: SharedStore
    host: Host

    @property
    def subnet_file(self) -> Path:
        return self.cluster.directory / "subnet.env"

    def state(self) -> State:
        leases = self.cluster.etcd.etcdctl("get", "--prefix", SUBNETS).splitlines()
        return State(leases, self.subnet_file.read_text(), self.host.save(), self.cluster.everything())

    def forget(self) -> None:
        """As before the first start, but for the subnet that the node had."""
        self.subnet_file.write_text(f"FLANNEL_SUBNET={OWN_SUBNET}\n")
        self.cluster.etcd.etcdctl("del", f"{SUBNETS}/10.5.27.0-24")
        self.host.restore("*nat\nCOMMIT\n*filter\nCOMMIT\n")

    @asynccontextmanager
    async def services(self) -> AsyncIterator[None]:
        """Three processes, ready; the dataplane counts the peer as programmed."""
        async with self.cluster.dataplane("--ip-masq") as running, masq_on(self.host, "--ip-masq") as masq:
            status = await running.until(peers=1)
            assert (list(status.lease.subnets), list(status.devices)) == (["10.5.27.0/24"], [])
            await masq.until()
            yield

    @asynccontextmanager
    async def command(self) -> AsyncIterator[None]:
        """`flannelette flanneld`, ready."""
        self.cluster.leases.terminate()
        endpoint = f"--etcd-endpoints={self.cluster.etcd.endpoint}"
        flanneld = flanneld_command.Flanneld(self.host, self.cluster.directory, endpoint, "--ip-masq")
        try:
            flanneld.until_ready()
            yield
            assert flanneld.end() == 0
        finally:
            flanneld.process.kill()
            flanneld.process.wait()


@pytest.fixture
def node(netns: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AllocNode]:
    require_flanneld()
    use_iptables("legacy", tmp_path, monkeypatch)
    with cluster_of(SharedStore, netns, ALLOC) as cluster, entered(netns, cluster.directory) as host:
        host.use_legacy()
        try:
            yield AllocNode(cluster, host)
        finally:
            cluster.close()


@pytest.mark.parametrize("ours", [AllocNode.services, AllocNode.command])
async def test_a_node_is_as_with_a_real_flanneld(
    node: AllocNode, ours: Callable[[AllocNode], AbstractAsyncContextManager[None]]
) -> None:
    node.cluster.etcd.etcdctl("put", PEER, '{"PublicIP":"10.99.0.12","PublicIPv6":null}')
    node.forget()
    await node.cluster.quiet()
    untouched = node.cluster.everything()
    flanneld = Flanneld(node.cluster, node.host.netns, node.cluster.directory)
    try:
        await flanneld.start()
        await eventually(lambda: "\n".join(node.host.save()), contains(*JUMPS))
        flannels = node.state()
        await flanneld.stop()
    finally:
        flanneld.discard()
    assert flannels.kernel == untouched
    assert flannels.leases[:2] == [f"{SUBNETS}/10.5.27.0-24", '{"PublicIP":"10.99.0.11","PublicIPv6":null}']
    async with ours(node):
        assert node.state() == flannels, "taken over"
    node.forget()
    async with ours(node):
        assert node.state() == flannels, "made"
    assert node.state() == flannels, "what has stopped leaves everything as it is"
