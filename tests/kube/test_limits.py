"""What manifests say of memory is what the kernel holds containers to, with cgroup v1 and v2."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.kubernetes.cluster import Cluster, Container
from lab.vm import is_guest
from tests.kube.workloads import OURS, are_nodes_ready, get, node_of, sidecars, until
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
GREEDY = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "greedy"},
    "spec": {
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
        "containers": [
            {
                "name": "greedy",
                "image": "kube.invalid/pod:1",
                "command": ["tail", "/dev/zero"],
                "resources": {"limits": {"memory": "32Mi"}},
            }
        ],
    },
}


async def limit_in_force(cluster: Cluster, container: Container) -> int:
    """Of a container's memory, in bytes, as its cgroup has it."""
    node = node_of(cluster, container.node)
    tasks = (await node.run("ctr", "-n", "k8s.io", "tasks", "list")).splitlines()
    process = next(line.split()[1] for line in tasks if line.startswith(container.id))
    lines = (await node.run("cat", f"/proc/{process}/cgroup")).splitlines()
    group = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    file = f"{group['']}/memory.max" if is_v2(group) else f"/memory{group['memory']}/memory.limit_in_bytes"
    return int(await node.run("cat", f"/sys/fs/cgroup{file}"))


def is_v2(groups: Mapping[str, str]) -> bool:
    """Whether a process with these groups, by controllers, has one of v2 alone."""
    return list(groups) == [""]


async def test_the_vm_is_for_cgroup_v2(cluster: Cluster) -> None:
    kind = await cluster.nodes[0].run("stat", "--file-system", "--format=%T", "/sys/fs/cgroup")
    assert kind == "cgroup2fs\n" or not is_guest()


async def test_each_sidecar_has_the_memory_limit_of_its_manifest(cluster: Cluster) -> None:
    (daemon_set,) = (await get(cluster, "daemonsets", *OURS))["items"]
    written = {
        each["name"]: each["resources"]["limits"]["memory"]
        for each in daemon_set["spec"]["template"]["spec"]["containers"]
    }
    wanted = {name: int(limit[:-2]) * _UNITS[limit[-2:]] for name, limit in written.items()}
    found = await sidecars(cluster)
    assert found
    for each in found:
        assert (each.name, await limit_in_force(cluster, each)) == (each.name, wanted[each.name])


async def test_a_pod_that_takes_more_than_its_limit_is_killed_and_no_other(cluster: Cluster, tmp_path: Path) -> None:
    before = await cluster.containers()
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(GREEDY))

    async def is_killed() -> bool:
        (status,) = (await get(cluster, "pod", "greedy"))["status"]["containerStatuses"]
        return bool(status["state"].get("terminated", {}).get("reason") == "OOMKilled")

    try:
        await cluster.kubectl("apply", "--filename", str(manifest))
        await until(is_killed, 2 * PATIENCE)
        assert await cluster.containers() == before
        assert await are_nodes_ready(cluster)
    finally:
        await cluster.kubectl("delete", "pod", "greedy", "--ignore-not-found")
