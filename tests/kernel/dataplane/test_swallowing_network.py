"""A network that swallows half of the world is not carried: the last good one stays.

Regression tests of hole 5.
"""

from tests.hosts.dataplane import Cluster
from tests.waiting import contains, eventually

ROUTE = "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"


async def test_a_network_that_swallows_loopback_and_more_is_said_and_changes_nothing(
    cluster: Cluster,
) -> None:
    await cluster.join("n2", "10.99.0.12", "06:0c:56:6d:fb:b3", "10.5.53.0/24")
    async with cluster.dataplane("--audit-interval=600") as running:
        await running.until(peers=1)
        before, subnet_file = cluster.everything(), cluster.directory / "subnet.env"
        told = subnet_file.read_text()
        good = cluster.network_file.read_text()
        cluster.network_file.write_text('{"Network":"0.0.0.0/1","SubnetLen":24,"Backend":{"Type":"vxlan"}}')
        await eventually(lambda: running.log, contains("the network 0.0.0.0/1 covers 0.0.0.0/8"))
        assert (cluster.routes(), subnet_file.read_text()) == ([ROUTE], told)
        cluster.network_file.write_text(good)
        await running.until(peers=1)
        assert cluster.everything() == before
