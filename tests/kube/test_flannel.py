"""kube-flannel is replaced by Flannelette and back, as docs/kubernetes.md says; no packet between pods is lost."""

from pathlib import Path

import pytest

from flannelette.services.runtime.process.version import VERSION
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.options import Options
from tests.kube.flood import flood
from tests.kube.page import Shell
from tests.kube.workloads import DAEMON_SET, OURS, get, until, until_rolled_out

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]

OVERLAY = pytest.mark.parametrize("cluster", [Options(flannel=True)], indirect=True, ids=["manifests"])
CHART = pytest.mark.parametrize("cluster", [Options(overlay="helm", flannel=True)], indirect=True, ids=["chart"])
IN_PLACE = "In the place of kube-flannel"


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


async def containers(cluster: Cluster) -> list[str]:
    """Of each node's pod."""
    await until_rolled_out(cluster)
    pod = (await get(cluster, DAEMON_SET, *OURS))["spec"]["template"]["spec"]
    return [each["name"] for each in pod["containers"]]


async def clean_up(cluster: Cluster, shell: Shell) -> None:
    """Routes of ours, which remain beside kube-flannel's."""

    async def are_done() -> bool:
        pods = (await get(cluster, "pods", "--selector=app.kubernetes.io/managed-by=kubectl-debug"))["items"]
        return [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * len(cluster.nodes)

    for node in cluster.nodes:
        await shell.type_section(IN_PLACE, {"node/n1": f"node/{node.name}"}, slice(1, 2))
    await until(are_done)
    await shell.type_section(IN_PLACE, blocks=slice(2, None))
    for node in cluster.nodes:
        assert await node.run("ip", "route", "show", "proto", "77") == ""


@OVERLAY
async def test_the_manifests_replace_kube_flannels_and_theirs_ours(cluster: Cluster, shell: Shell) -> None:
    async with flood(cluster, "kube-flannel to the overlay in-place"):
        await shell.type_section(IN_PLACE, blocks=slice(1))
        assert await containers(cluster) == ["lease", "dataplane", "masq"]
    async with flood(cluster, "back to kube-flannel's manifest"):
        await cluster.kubectl("apply", "-k", str(cluster.flannel))
        assert await containers(cluster) == ["kube-flannel"]
        await clean_up(cluster, shell)


@OVERLAY
async def test_its_manifest_runs_the_image_with_all_programs(cluster: Cluster, shell: Shell) -> None:
    async def has_routes_of_ours() -> bool:
        found = [await node.run("ip", "route", "show", "proto", "77") for node in cluster.nodes]
        return all(found)

    image = f"flannelette-all:{VERSION}"
    async with flood(cluster, "flannel's image to ours in its manifest"):
        await cluster.kubectl("set", "image", *OURS, DAEMON_SET, f"kube-flannel={image}", f"install-cni={image}")
        assert await containers(cluster) == ["kube-flannel"]
        await until(has_routes_of_ours)
    async with flood(cluster, "back to flannel's image in its manifest"):
        await cluster.kubectl("apply", "-k", str(cluster.flannel))
        assert await containers(cluster) == ["kube-flannel"]
        await clean_up(cluster, shell)


@CHART
async def test_the_chart_replaces_flannels_and_is_rolled_back(cluster: Cluster, shell: Shell) -> None:
    upgrade = "helm upgrade flannel deploy/helm/flannelette --namespace kube-flannel --reset-then-reuse-values"
    async with flood(cluster, "flannel's chart to ours"):
        await shell.type(upgrade)
        assert await containers(cluster) == ["lease", "dataplane", "masq"]
    async with flood(cluster, "helm rollback to flannel's chart"):
        await shell.type("helm rollback flannel --namespace kube-flannel")
        assert await containers(cluster) == ["kube-flannel"]
        await clean_up(cluster, shell)
