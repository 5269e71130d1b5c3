"""An MTU that leaves a device less than IP needs: refused where it is known, and the last good one stays in force.

Regression tests of hole 3.
"""

import asyncio
import json
from typing import Any

import pytest

from flannelette.lease.v1 import lease_pb2
from tests.hosts.dataplane import Cluster, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import two_hosts
from tests.patience import PATIENCE
from tests.waiting import contains, equals, eventually

MAC = "06:0c:56:6d:fb:b3"


def network(**options: Any) -> str:
    return json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan", **options}})


async def refused(cluster: Cluster, mtu: int) -> None:
    """Returns once the lease service has refused this MTU, and the dataplane was told."""
    async with cluster.calls() as stub:
        await eventually(
            lambda: stub.GetStatus(lease_pb2.GetStatusRequest(), timeout=PATIENCE),
            lambda status: f"MTU {mtu} of Backend" in status.network_error,
        )


async def complaint(running: Running, words: str) -> None:
    """Returns once the dataplane says so."""
    await eventually(running.reasons, contains(words))


async def test_an_mtu_that_leaves_nothing_is_refused_and_the_last_good_one_stays(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", MAC, "10.5.53.0/24")
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        before = cluster.everything()
        for mtu in (1, 49, 50, 117):
            cluster.network_file.write_text(network(MTU=mtu))
            await refused(cluster, mtu)
            assert running.process.poll() is None
        await running.until(peers=1)
        assert cluster.everything()[0] == before[0]
        cluster.network_file.write_text(network(MTU=118))
        await eventually(lambda: cluster.ip("link show flannel.1"), contains(" mtu 68 "))
        await running.until(peers=1)


async def test_a_dataplane_that_starts_with_such_a_network_waits_for_a_better_one(
    netns: NetworkNamespace,
) -> None:
    with cluster_in(netns, network(MTU=40)) as cluster:
        async with cluster.dataplane() as running:
            await complaint(running, "MTU 40 of Backend")
            cluster.network_file.write_text(network(MTU=1400))
            await running.until()
            assert " mtu 1350 " in cluster.ip("link show flannel.1")


@pytest.mark.parametrize(("mtu", "network_text", "words"), [
    (100, network(), "VXLAN leaves 50 bytes for packets, and IPv4 needs 68"),
    (1300, '{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"vxlan"}}',
     "IPv6 needs 1280"),
])  # fmt: skip
async def test_an_underlay_that_carries_too_little_is_a_reason_and_no_crash(
    netns: NetworkNamespace, mtu: int, network_text: str, words: str
) -> None:
    with cluster_in(netns, network_text) as cluster:
        cluster.ip("address add fd99::11/64 dev eth0")
        cluster.ip("route add default via fd99::1")
        if mtu < 1280:
            cluster.run("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1")
        cluster.ip(f"link set eth0 mtu {mtu}")
        async with cluster.dataplane() as running:
            await complaint(running, words)
            assert "flannel" not in cluster.ip("-br link")
            cluster.ip("link set eth0 mtu 1500")
            await running.until()
            assert running.process.poll() is None


async def test_an_underlay_with_too_little_for_ipv6_carries_ipv4_with_its_mtu(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with two_hosts(netns, make_netns, "vxlan", "dual") as hosts:
        hosts.leave_flanneld_state()
        await hosts.join()

        async def until(mtu: int, *, has_ipv6: bool) -> None:
            await eventually(
                lambda: (f" mtu {mtu} " in hosts.cluster.ip("link show flannel.1"), "flannel-v6.1" in links()),
                equals((True, has_ipv6)),
            )

        def links() -> str:
            return hosts.cluster.ip("-br link show")

        async with hosts.cluster.dataplane() as running:
            await running.until(peers=1)
            netns.ip(*"link set eth0 mtu 1340".split())
            await until(1290, has_ipv6=False)
            status = await running.until(peers=1)
            assert any("IPv6 needs 1280" in each and "IPv4 alone is carried" in each for each in status.warnings)
            (finding,) = status.findings
            assert (finding.check, finding.broken, list(finding.peers)) == ("peer-refused", True, ["n2"])
            assert "IPv6 needs 1280" in finding.cause
            with hosts.stream() as stream:
                async with stream:
                    await asyncio.sleep(0.5)
            assert {lost.path.address.version for lost in stream.lost} == {6}
            netns.ip(*"link set eth0 mtu 1500".split())
            await until(1450, has_ipv6=True)
            await running.until(peers=1)
            assert not (await running.status()).findings
