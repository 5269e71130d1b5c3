"""`flannelette doctor --fix`: what it carries out on this host, and that it changes no other."""

import asyncio
import sys

from flannelette.lease.v1 import lease_pb2

from tests.hosts.dataplane import VXLAN, Cluster, Running, cluster_in, environment
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE

FORWARDING = "sysctl -n net.ipv4.conf.cni0.forwarding"


async def test_a_safe_cure_is_carried_out_where_the_service_runs_and_nowhere_else(netns: NetworkNamespace) -> None:
    with cluster_in(netns, VXLAN) as cluster:
        for line in (
            "link add cni0 type bridge",
            "link add pod type veth peer name far-pod",
            "link set pod master cni0 up",
            "link set far-pod up",
            "link set cni0 up",
        ):
            cluster.ip(line)
        cluster.run("sysctl -qw net.ipv4.ip_forward=1")
        async with cluster.dataplane() as running:
            await running.until()
            own = (await running.status()).lease.subnets[0].replace(".0/24", ".1/24")
            cluster.ip(f"address add {own} dev cni0")
            cluster.run("sysctl -qw net.ipv4.conf.cni0.forwarding=0")
            await found(running, "forwarding-off")
            assert [each.check for each in await told(cluster, is_wrong=True)] == ["forwarding-off"]
            code, text = await doctor(cluster, "--fix", "--yes", where="outside")
            assert code == 1
            assert (
                "the service runs in another network namespace; run `flannelette doctor --fix` on that node" in text
            )
            assert cluster.run(FORWARDING).strip() == "0"
            code, text = await doctor(cluster, "--fix", where="inside")
            assert code == 2
            assert "there is no terminal to ask on: give --yes" in text
            code, text = await doctor(cluster, "--fix", "--yes", where="inside")
            assert (code, text.splitlines()[-1]) == (0, "n1: no problems found")
            assert "To be carried out on this host:\n  sysctl -w net.ipv4.conf.cni0.forwarding=1\n" in text
            assert cluster.run(FORWARDING).strip() == "1"
            await told(cluster, is_wrong=False)


async def found(running: Running, check: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while check not in [each.check for each in (await running.status()).findings]:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.05)


async def told(cluster: Cluster, *, is_wrong: bool) -> list[lease_pb2.Finding]:
    """What the lease service shows of the node, once it has problems, or none any more."""
    async with asyncio.timeout(PATIENCE), cluster.calls() as calls:
        while True:
            (node,) = (await calls.ListNodes(lease_pb2.ListNodesRequest())).nodes
            if bool(node.findings) is is_wrong:
                assert node.version
                return [*node.findings]
            await asyncio.sleep(0.05)


async def doctor(cluster: Cluster, *words: str, where: str) -> tuple[int, str]:
    directory = f"--socket-dir={cluster.directory}"
    command = (sys.executable, "-m", "services.ctl.main", directory, "doctor", "dataplane", *words)
    process = await asyncio.create_subprocess_exec(
        *(cluster.namespace.command(*command) if where == "inside" else command),
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()
