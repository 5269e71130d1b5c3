"""What happens to nodes of a cloud: one leaves, one gets another address. The table has to follow."""

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from lab import look
from lab.build import carry_out
from lab.cluster import Cluster, Pod
from lab.reach import reach, unreached
from lab.show import Screen
from lab.topology import OUTSIDE, UNDERLAY, Batch, Host
from lab.vpc.ec2 import Ec2
from lab.vpc.places import EC2_URL
from lab.vpc.programs import CLOUD, vpc
from lab.vpc.router import in_kernel

_NEW: Final = 200
"""Added to the address of a host."""


async def until_routed(cluster: Cluster, targets: dict[str, IPv4Address]) -> None:
    """Returns when the table has a route for each of these nodes to these addresses, and the router the same."""
    (service,) = cluster.named(CLOUD)
    async with cluster.patience(service):
        routes = await look.until_routed(service.program.address, targets.keys())
        wanted = {destination: str(targets[node]) for node, destination in routes.items()}
        while await asyncio.to_thread(_at_router) != wanted:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.1)


async def change_nodes(cluster: Cluster, pods: Sequence[Pod], screen: Screen) -> list[str]:
    """The last host leaves, and the one before it gets another address; what is wrong then, a sentence each."""
    moved, gone = cluster.hosts[-2:]
    stay = {host.name: host.address for host in cluster.hosts if host is not gone}
    with screen.step("node leaves", f"{gone.name}: its route goes, the others stay"):
        await cluster.end_host(gone)
        await look.release_leases(next(cluster.named("lease")).program.address, gone.name)
        await until_routed(cluster, stay)
    new = UNDERLAY[_NEW + moved.number]
    with screen.step("new address", f"{moved.name} has {new}: its route leads there"):
        await asyncio.to_thread(_make_interface, cluster.directory, new)
        await carry_out([_renumbered(moved, new)])
        await until_routed(cluster, stay | {moved.name: new})
    left = [pod for pod in pods if pod.host is not gone]
    with screen.step("pings", "between the pods that are left") as step, reach(left) as reaching:
        failures = [*unreached(await reaching.matrix(), {})]
        step.is_good = not failures
    return failures


def _at_router() -> dict[str, str]:
    with OUTSIDE.inside():
        return in_kernel()


def _make_interface(directory: Path, address: IPv4Address) -> None:
    with OUTSIDE.inside():
        Ec2(EC2_URL).call("CreateNetworkInterface", SubnetId=vpc(directory)["subnet"], PrivateIpAddress=str(address))


def _renumbered(host: Host, new: IPv4Address) -> Batch:
    return Batch(
        host.name,
        (
            f"address delete {host.address}/{UNDERLAY.prefixlen} dev eth0",
            f"address add {new}/{UNDERLAY.prefixlen} dev eth0",
            f"route replace default via {UNDERLAY[1]} dev eth0",
        ),
    )
