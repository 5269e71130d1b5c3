"""One way to install Flannelette after another, as docs/kubernetes.md says, and no packet between pods is lost."""

import subprocess
from pathlib import Path

import pytest

from lab.kubernetes.cluster import Cluster
from tests.kube.flood import flood
from tests.kube.page import Shell
from tests.kube.workloads import DAEMON_SET, OURS, get, until_rolled_out
from tests.paths import ROOT

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]

CHART_BEFORE = "18852a8"
"""Its chart stands for the last release's until there is one."""


@pytest.fixture
def shell(cluster: Cluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


async def containers_of(cluster: Cluster) -> list[object]:
    pod = (await get(cluster, DAEMON_SET, *OURS))["spec"]["template"]["spec"]
    return [*pod["initContainers"], *pod["containers"], pod["volumes"]]


async def test_from_the_manifests_to_the_chart_and_back(cluster: Cluster, shell: Shell) -> None:
    title = "From the manifests to the chart and back"
    before = await containers_of(cluster)
    async with flood(cluster, "from the manifests to the chart"):
        await shell.type_section(title, blocks=slice(1))
        await until_rolled_out(cluster)
    assert '"flannel"' in await shell.type("helm list --namespace kube-flannel --output json")
    async with flood(cluster, "from the chart back to the manifests"):
        await shell.type_section(title, blocks=slice(1, 2))
        await until_rolled_out(cluster)
    assert await shell.type("helm list --namespace kube-flannel --short") == ""
    assert await containers_of(cluster) == before


def last_chart(home: Path) -> str:
    """That of the last release, below this directory."""
    tags = subprocess.run(["git", "-C", ROOT, "tag", "--sort=-version:refname"], capture_output=True, text=True)
    last = next(iter(tags.stdout.split()), CHART_BEFORE)
    packed = subprocess.run(["git", "-C", ROOT, "archive", last, "deploy/helm"], capture_output=True)
    if packed.returncode:
        pytest.skip(f"the checkout has no {last}: {packed.stderr.decode()}")
    (home / "last").mkdir()
    subprocess.run(["tar", "-x", "-C", home / "last"], input=packed.stdout, check=True)
    return "last/deploy/helm/flannelette"


async def what_runs(cluster: Cluster) -> list[object]:
    """Not mounts: what helm takes over keeps those that it does not know."""
    pod = (await get(cluster, DAEMON_SET, *OURS))["spec"]["template"]["spec"]
    containers = [*pod["initContainers"], *pod["containers"]]
    return [(each["name"], each["image"], each.get("command"), each.get("args")) for each in containers]


async def test_an_upgrade_of_the_last_releases_chart_is_rolled_back(cluster: Cluster, shell: Shell) -> None:
    last = last_chart(shell.home)
    install = f"helm upgrade --install --take-ownership flannel {last} --namespace kube-flannel"
    async with flood(cluster, "to the last release's chart"):
        await shell.type(f"{install} --set podCidr=10.244.0.0/16")
        await until_rolled_out(cluster)
    before = await what_runs(cluster)
    async with flood(cluster, "chart upgraded from the last release"):
        await shell.type_section("With helm")
        await until_rolled_out(cluster)
    async with flood(cluster, "helm rollback to the last release"):
        await shell.type("helm rollback flannel --namespace kube-flannel")
        await until_rolled_out(cluster)
    assert await what_runs(cluster) == before
    await shell.type_section("From the manifests to the chart and back", blocks=slice(1, 2))
    await until_rolled_out(cluster)
