"""From a flanneld to us and back: every backend, every family, and no packet lost on either way."""

import grpc
import grpc.aio
import pytest

from tests.hosts.dataplane import VXLAN, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import BACKENDS, FAMILIES, two_hosts


@pytest.mark.parametrize("families", FAMILIES)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_takeover_and_a_handover_end_where_they_began_and_lose_no_packet(
    netns: NetworkNamespace, make_netns: NamespaceMaker, backend: str, families: str
) -> None:
    with two_hosts(netns, make_netns, backend, families) as hosts:
        hosts.leave_flanneld_state()
        await hosts.cluster.quiet()
        await hosts.join()
        flannelds = hosts.objects() + hosts.devices()
        with hosts.stream() as stream:
            async with stream, hosts.cluster.dataplane() as running:
                await running.until(peers=1)
                await running.quiet()
                await running.resync()  # what the first comparison put in place, the next one finds
                await running.until(peers=1, last_resync_changes=0)
                ours = hosts.objects()
                planned = await running.hand_over(dry_run=True)
                assert hosts.objects() == ours
                done = await running.hand_over()
                await running.until(ready=False, because="handed over to flanneld by an operator")
        assert (stream.sent > 0, stream.lost) == (True, [])
    assert len(done) == 2 * len(hosts.rows)
    assert done == planned
    assert sum(" proto 77 metric " in line for line in ours) == len(hosts.rows)
    assert hosts.objects() + hosts.devices() == flannelds


async def test_a_handover_pauses_leaves_foreign_routes_alone_and_can_be_taken_back(netns: NetworkNamespace) -> None:
    foreign = "10.5.54.0/24 via 10.99.0.77 dev eth0"
    with cluster_in(netns, VXLAN) as cluster:
        cluster.ip("link add cni0 type bridge")
        cluster.ip("addr add 10.5.27.1/24 dev cni0")
        cluster.ip("link set cni0 up")
        pods = [line for line in cluster.routes() if "cni0" in line]
        async with cluster.dataplane("--ip-blackhole-route") as running:
            await running.until()
            for number in (53, 54):
                await cluster.join(
                    f"n{number}", f"10.99.0.{number}", f"06:0c:56:6d:fb:{number}", f"10.5.{number}.0/24"
                )
            await running.until(peers=2)
            cluster.ip(f"route add {foreign}")
            assert "blackhole 10.5.27.0/24 proto 77 metric 4294967295" in cluster.routes()
            await running.hand_over()
            flannels = [*pods, "10.5.53.0/24 via 10.5.53.0 dev flannel.1 onlink", foreign]
            assert cluster.routes() == flannels
            assert await running.hand_over() == [], "again there is nothing to do"
            await cluster.join("n55", "10.99.0.55", "06:0c:56:6d:fb:55", "10.5.55.0/24")
            cluster.ip("route del 10.5.53.0/24")
            status = await running.until(ready=False, lease_service_connected=True)
            assert cluster.routes() == [*pods, foreign], "paused"
            assert (status.lease.name != "", status.lease.HasField("renew_time")) == (True, False)
            assert not (await running.resync()).errors
            status = await running.until(peers=2, ready=True)
            assert status.lease.HasField("renew_time")
            assert sum(" proto 77 " in line for line in cluster.routes()) == 4


async def test_without_the_device_there_is_nothing_to_hand_over(netns: NetworkNamespace) -> None:
    with cluster_in(netns, VXLAN) as cluster:
        async with cluster.dataplane() as running:
            await running.until()
            await running.teardown()
            for dry_run in (True, False):
                with pytest.raises(
                    grpc.aio.AioRpcError, match=r"flannel\.1 is missing.*flannelette resync"
                ) as refused:
                    await running.hand_over(dry_run=dry_run)
                assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
