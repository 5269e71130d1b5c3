"""Flannelette is uninstalled as docs/uninstall.md says: nothing of it is left, and it can be installed again."""

from pathlib import Path
from typing import Final

import pytest

from lab.build import CommandFailed
from lab.kubernetes.cluster import Cluster
from lab.reach import reach
from tests.kube.flood import everybody_reaches_everybody
from tests.kube.page import UNINSTALL, Shell
from tests.kube.workloads import OURS, are_nodes_ready, get, until, until_rolled_out
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]

TRACES: Final = """\
ip -o link show | grep -o 'flannel[^:@]*' || true
ip route show proto 77
ip -6 route show proto 77
iptables-save | grep -i flannel || true
nft list ruleset | grep -i flannel || true
find /run /etc /opt/cni /var/lib/flannelette* -xdev -iname '*flannel*' 2>/dev/null || true
"""
"""What shows on a node that Flannelette has been there."""


async def what_shows(cluster: Cluster) -> dict[str, str]:
    """By node."""
    return {node.name: await node.run("sh", "-uc", TRACES) for node in cluster.nodes}


async def names_in_the_api(cluster: Cluster) -> list[str]:
    kinds = "namespaces,clusterroles,clusterrolebindings"
    names = (await cluster.kubectl("get", kinds, "--output=name")).split()
    return [name for name in names if "flannel" in name]


async def until_no_node_is_ready(cluster: Cluster) -> None:
    async def is_so() -> bool:
        items = (await get(cluster, "nodes"))["items"]
        return not any(
            c["status"] == "True" for i in items for c in i["status"]["conditions"] if c["type"] == "Ready"
        )

    await until(is_so, 2 * PATIENCE)


@pytest.mark.parametrize("way", ["manifests", "chart"])
async def test_nothing_is_left_on_nodes_and_in_the_api(cluster: Cluster, tmp_path: Path, way: str) -> None:
    shell = Shell(cluster, tmp_path)
    teardown, delete, by_helm, remove_files = UNINSTALL["Kubernetes"].blocks
    if way == "chart":
        await shell.type_section("From the manifests to the chart and back", blocks=slice(1))
        await until_rolled_out(cluster)
    pods = await cluster.pods()
    shown = await what_shows(cluster)
    assert all(
        "flannel.1\n" in text and "FLANNEL-POSTRTG" in text and "/run/flannel\n" in text for text in shown.values()
    )
    assert await names_in_the_api(cluster)

    assert "ip link del" in await shell.type_block(teardown)
    await shell.type_block(by_helm if way == "chart" else delete)
    for node in cluster.nodes:
        await node.run("sh", "-euc", remove_files.commands)

    assert await what_shows(cluster) == dict.fromkeys(shown, "")
    assert await names_in_the_api(cluster) == []
    with pytest.raises(CommandFailed, match="not found"):
        await cluster.kubectl("get", "namespace", OURS[1])
    await until_no_node_is_ready(cluster)
    with reach(pods) as reaching:
        assert not any(answer.seconds for answer in (await reaching.matrix()).values())

    await cluster.install()
    await until(lambda: are_nodes_ready(cluster))
    await everybody_reaches_everybody(cluster)
