"""Clusters of other kinds come up, answer in every way, and lose no packet when each dataplane and masq is killed."""

import pytest

from lab.kubernetes.answers import ask, unanswered
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.options import Options
from tests.kube.flood import everybody_reaches_everybody, flood
from tests.kube.workloads import send_signal, sidecars

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]

VARIANTS = {
    "the manifests": Options(),
    "chart, host-gw": Options(2, overlay="helm", backend="host-gw"),
    "central, nftables": Options(2, overlay="central", proxy="nftables"),
    "dual stack": Options(2, family="dual"),
    "IPv6": Options(2, family="ipv6"),
    "IPv6, chart, host-gw": Options(2, family="ipv6", overlay="helm", backend="host-gw", proxy="nftables"),
}


@pytest.mark.parametrize("cluster", VARIANTS.values(), ids=VARIANTS, indirect=True)
async def test_a_cluster_answers_in_every_way(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    await everybody_reaches_everybody(cluster)
    assert list(unanswered(await ask(await cluster.pods(), await cluster.service()))) == []
    async with flood(cluster, f"{request.node.callspec.id}: every dataplane and masq killed at once"):
        killed = await sidecars(cluster, "dataplane", "masq")
        for each in killed:
            await send_signal(cluster, each, "SIGKILL")
        await cluster.until_replaced(killed)
