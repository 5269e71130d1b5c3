"""Where faults are put to the test: one node with a dataplane, and one that the test plays."""

import asyncio
from collections.abc import Awaitable, Callable

from flannelette.lease.v1 import lease_pb2
from tests.etcd.server import EtcdServer
from tests.hosts.dataplane import Cluster, Running
from tests.hosts.two_hosts import TwoHosts
from tests.services.lease import ServiceProcess
from tests.waiting import eventually


class OnEtcd(Cluster):
    """Its lease service has the leases in an etcd of its own."""

    def start_leases(self) -> ServiceProcess:
        self.etcd = EtcdServer(self.directory)
        self.etcd.start()
        self.etcd.etcdctl("put", "/coreos.com/network/config", self.network_file.read_text())
        return ServiceProcess(self.directory, "--store=etcd", "--central", f"--etcd-endpoints={self.etcd.endpoint}")


class Scene:
    """n1 with a dataplane, and n2, whose part the test plays."""

    def __init__(self, hosts: TwoHosts, start: Callable[[], Awaitable[Running]], running: Running) -> None:
        self.hosts = hosts
        self.cluster = hosts.cluster
        self.start = start
        self.running = running

    async def n1(self, *lines: str) -> None:
        """Runs these commands on n1."""
        for line in lines:
            await asyncio.to_thread(self.cluster.run, line)

    async def n2(self, *lines: str) -> None:
        """Runs these commands on n2."""
        for line in lines:
            await asyncio.to_thread(self.hosts.n2.run, *line.split())

    async def follow(self, address: str) -> None:
        """n2 does as a peer does once n1's lease has this address."""
        own, _ = self.hosts.rows[0]
        async with self.cluster.calls() as stub:
            request = lease_pb2.ListLeasesRequest(node="n1")
            await eventually(lambda: stub.ListLeases(request), lambda seen: address in str(seen))
        await self.n2(f"bridge fdb replace {own.mac} dev {own.device} dst {address} self permanent")
