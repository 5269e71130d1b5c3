"""aws-vpc on three hosts with real dataplanes: their leases become routes of a VPC, which is moto's."""

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

from tests.clouds.aws import environment, make_vpc, metadata, moto
from tests.clouds.process import Leases, cloud_process
from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace

AWS = '{"Network":"10.5.0.0/16","Backend":{"Type":"aws-vpc"}}'


class Host:
    """A host with eth0 on 10.99.0.1N, and its dataplane."""

    def __init__(self, number: int, namespace: NetworkNamespace, directory: Path) -> None:
        self.name = f"n{number}"
        self.namespace = namespace
        self.directory = directory / self.name
        self.directory.mkdir()
        namespace.ip("link", "add", "eth0", "type", "veth", "peer", "far")
        for name in ("eth0", "far"):
            namespace.ip("link", "set", name, "up")
        namespace.ip("address", "add", f"10.99.0.1{number}/24", "dev", "eth0")
        namespace.ip("route", "add", "default", "via", "10.99.0.1")

    def arguments(self, *more: str) -> list[str]:
        return [
            f"--node={self.name}",
            f"--socket-dir={self.directory}",
            f"--lease-address=unix:{self.directory.parent}/lease.sock",
            f"--subnet-file={self.directory}/subnet.env",
            f"--state-dir={self.directory}/state",
            "--probe-rate=0",
            *more,
        ]

    def move(self, old: str, new: str) -> None:
        """The host has another address from now on."""
        self.namespace.ip("address", "del", f"{old}/24", "dev", "eth0")
        self.namespace.ip("address", "add", f"{new}/24", "dev", "eth0")
        self.namespace.ip("route", "replace", "default", "via", "10.99.0.1")


async def test_the_table_follows_nodes_that_come_go_and_move(make_netns: NamespaceMaker, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        ec2 = stack.enter_context(moto(tmp_path))
        vpc = make_vpc(ec2)
        url = stack.enter_context(metadata(vpc))
        leases = Leases(tmp_path, AWS)
        stack.enter_context(leases.service)
        interfaces = {n: vpc.instance(f"10.99.0.1{n}") for n in (1, 2, 3)}
        cloud = await stack.enter_async_context(cloud_process(tmp_path, environment(ec2, url)))
        hosts = {n: Host(n, make_netns(), tmp_path) for n in (1, 2, 3)}
        nodes = {n: Running(host, (), ()) for n, host in hosts.items()}
        for node in nodes.values():
            stack.push_async_callback(node.end, signal.SIGKILL)
        cidrs = {n: (await node.until(peers=2)).lease.subnets[0] for n, node in nodes.items()}
        await cloud.until_routes("n1", "n2", "n3")
        assert vpc.routes() == {cidrs[n]: interfaces[n] for n in (1, 2, 3)}
        for n, host in hosts.items():
            assert host.namespace.ip("route", "show", "root", "10.5.0.0/16") == ""
            assert f"FLANNEL_SUBNET={cidrs[n].replace('0/', '1/')}" in (host.directory / "subnet.env").read_text()
        await nodes[3].end(signal.SIGKILL)
        await leases.leave("n3", cidrs[3])
        moved = vpc.instance("10.99.0.22")
        await asyncio.to_thread(hosts[2].move, "10.99.0.12", "10.99.0.22")
        status = await cloud.until(
            lambda status: (
                status.ready
                and {(r.node, r.target) for r in status.routes if r.state == "active"}
                == {("n1", interfaces[1]), ("n2", moved)}
            )
        )
        assert {route.destination for route in status.routes} == {cidrs[1], cidrs[2]}
        assert vpc.routes() == {cidrs[1]: interfaces[1], cidrs[2]: moved}
