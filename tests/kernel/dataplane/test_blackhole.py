"""--ip-blackhole-route: what is for the own subnet and no pod takes ends here; every other route wins."""

from tests.hosts.dataplane import Cluster, cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.kernel.dataplane.test_families import DUAL, with_ipv6
from tests.waiting import equals, eventually

ROUTES = [
    "blackhole 10.5.27.0/24 proto 77 metric 4294967295",
    "blackhole fd00:10:5:1b::/64 dev lo proto 77 metric 4294967295 pref medium",
]
COMMANDS = [
    "ip route {} blackhole 10.5.27.0/24 proto 77 metric 4294967295",
    "ip -6 route {} blackhole fd00:10:5:1b::/64 dev lo proto 77 metric 4294967295",
]
OWN = "FLANNEL_SUBNET=10.5.27.1/24\nFLANNEL_IPV6_SUBNET=fd00:10:5:1b::1/64\n"


def blackholes(cluster: Cluster) -> list[str]:
    lines = cluster.ip("route show type blackhole") + "\n" + cluster.ip("-6 route show type blackhole")
    return [" ".join(line.split()) for line in lines.splitlines() if line]


async def test_the_own_subnets_get_one_that_is_repaired_and_goes_with_everything_else(
    netns: NetworkNamespace,
) -> None:
    with with_ipv6(netns, DUAL % "vxlan") as cluster:
        (cluster.directory / "subnet.env").write_text(OWN)
        async with cluster.dataplane("--ip-blackhole-route", "--audit-interval=600") as running:
            status = await running.until(peers=0)
            assert status.lease.subnets == ["10.5.27.0/24", "fd00:10:5:1b::/64"]
            assert blackholes(cluster) == ROUTES
            assert (await running.resync()).commands == []
            for line in ROUTES:
                cluster.ip(("-6 " if "::" in line else "") + "route del " + line.removesuffix(" pref medium"))
                await eventually(lambda: blackholes(cluster), equals(ROUTES))
            assert (await running.until()).repairs == 2
            torn = list((await running.teardown()).commands)
            assert {command.format("del") for command in COMMANDS} <= set(torn)
            assert blackholes(cluster) == []
            planned = (await running.resync(dry_run=True)).commands
            assert {command.format("replace") for command in COMMANDS} <= set(planned)
            await running.resync()
            assert blackholes(cluster) == ROUTES
            await running.end()
        assert blackholes(cluster) == ROUTES
        async with cluster.dataplane("--ip-blackhole-route") as running:
            assert (await running.until()).last_resync_changes == 0
            await running.end()
        async with cluster.dataplane() as running:
            await running.until()
            assert blackholes(cluster) == []


async def test_the_bridge_of_the_pods_wins_whichever_came_first(netns: NetworkNamespace) -> None:
    with cluster_in(netns) as cluster:
        async with cluster.dataplane("--ip-blackhole-route") as running:
            await running.until(peers=0)
            for line in (
                "link add cni0 type bridge",
                "addr add 10.5.27.1/24 dev cni0",
                "link set cni0 up",
            ):
                cluster.ip(line)
            assert "dev cni0" in cluster.ip("route get 10.5.27.9")
            await running.resync()
            assert "dev cni0" in cluster.ip("route get 10.5.27.9")
            assert (await running.until()).unclaimed == []
            cluster.ip("link del cni0")
            assert blackholes(cluster) == ROUTES[:1]
