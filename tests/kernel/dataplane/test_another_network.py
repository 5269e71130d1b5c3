"""A second flannel network on the host (docs/migration.md): the dataplane leaves its kernel objects alone.

Regression tests of hole 17.
"""

from tests.hosts.dataplane import Cluster

THEIRS = (
    "link add flannel.2 address 06:00:00:00:02:01 type vxlan id 2 local 10.99.0.11 dev eth0 dstport 8472 nolearning",
    "link set flannel.2 up",
    "address add 10.6.1.0/32 dev flannel.2",
    "route add 10.6.2.0/24 via 10.6.2.0 dev flannel.2 onlink",
    "neighbour add 10.6.2.0 lladdr 06:00:00:00:02:02 dev flannel.2 nud permanent",
)


def theirs(cluster: Cluster) -> list[str]:
    """What a flanneld of the network 10.6.0.0/16 with VNI 2 has made."""
    looks = (
        "-d link show dev flannel.2",
        "address show dev flannel.2",
        "route show dev flannel.2",
        "neigh show dev flannel.2",
    )
    return [cluster.ip(look) for look in looks] + [str(cluster.fdb("flannel.2"))]


async def test_the_objects_of_another_network_s_flanneld_stay_through_start_resync_and_teardown(
    cluster: Cluster,
) -> None:
    for line in THEIRS:
        cluster.ip(line)
    cluster.run("bridge fdb append 06:00:00:00:02:02 dev flannel.2 dst 10.99.0.12")
    await cluster.join("n2", "10.99.0.12", "06:00:00:00:01:02")
    before = theirs(cluster)
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert theirs(cluster) == before
        await running.resync()
        assert theirs(cluster) == before
        assert (await running.hand_over())[0].startswith("ip route replace")
        assert theirs(cluster) == before
        await running.resync()
        assert "ip link del flannel.1" in (await running.teardown()).commands
        assert theirs(cluster) == before
