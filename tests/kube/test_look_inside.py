"""The command line from a pod, as docs/kubernetes.md says."""

import json
import sys
from pathlib import Path

import pytest

from lab.kubernetes.cluster import Cluster
from lab.topology import SERVICE_ADDRESS
from tests.ctl.sysdump import unpacked
from tests.kube.flood import everybody_reaches_everybody
from tests.kube.page import PAGE, Shell
from tests.kube.workloads import OURS, get, until

pytestmark = [pytest.mark.kube, pytest.mark.asyncio(loop_scope="session")]


async def pod_of(cluster: Cluster, node: str) -> str:
    pods = await get(cluster, "pods", *OURS, "--selector=app=flannel", f"--field-selector=spec.nodeName={node}")
    return str(pods["items"][0]["metadata"]["name"])


@pytest.mark.parametrize("container", ["dataplane", "masq"])
async def test_the_containers_that_reach_all_services_say_how_their_node_is(cluster: Cluster, container: str) -> None:
    for node in cluster.nodes:
        look = ("exec", await pod_of(cluster, node.name), *OURS, "--container", container, "--")
        status = await cluster.kubectl(*look, "flannelette", "status")
        assert status.splitlines()[0] == f"{node.name} is healthy"
        assert await cluster.kubectl(*look, "flannelette", "doctor")  # else there is a problem


async def test_the_container_of_the_lease_service_reaches_that_alone(cluster: Cluster, tmp_path: Path) -> None:
    look = f"kubectl exec {await pod_of(cluster, cluster.nodes[0].name)} {' '.join(OURS)} --container lease --"
    said = await Shell(cluster, tmp_path).type(f"{look} flannelette status || true")
    states = [tuple(line.split()[:2]) for line in said.splitlines()]
    assert {("lease", "ready"), ("dataplane", "away"), ("masq", "away")} <= {*states}, said


async def test_a_nodes_pod_says_whom_the_node_reaches(cluster: Cluster) -> None:
    first, *others = (node.name for node in cluster.nodes)
    look = ("exec", await pod_of(cluster, first), *OURS, "--", "flannelette")
    found = json.loads(await cluster.kubectl(*look, "connectivity", "-o", "json"))
    assert {(each["test"], each["source"], each["target"]) for each in found["checks"]} >= {
        (test, first, other) for test in ("overlay", "underlay") for other in others
    }
    assert {each["source"] for each in found["checks"]} == {first, ""}  # "" of what was not asked
    assert not [each for each in found["checks"] if each["outcome"] == "FAILED"]


async def test_every_node_is_asked_from_outside_by_kubectl(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "contexts.toml").write_text('current = "here"\n[here]\nkubernetes = true\n')
    shell = Shell(cluster, tmp_path)
    command = f"FLANNELETTE_CONTEXTS={tmp_path}/contexts.toml {sys.executable} -m flannelette.services.ctl.main"
    for node in cluster.nodes:
        assert f"{node.name} is healthy" in await shell.type(f"{command} --on {node.name} status")
    assert await shell.type(f"{command} doctor") == f"{len(cluster.nodes)} nodes: no problems found\n"
    await everybody_reaches_everybody(cluster)  # a pod that has never sent anything is not known
    found = json.loads(await shell.type(f"{command} connectivity --outside {SERVICE_ADDRESS} -o json"))
    pairs = {(a.name, b.name) for a in cluster.nodes for b in cluster.nodes if a is not b}
    passed = {
        (each["test"], each["source"], each["target"]) for each in found["checks"] if each["outcome"] == "PASSED"
    }
    assert passed == {
        *((test, *pair) for test in ("overlay", "underlay", "pod") for pair in pairs),
        *(("outside", node.name, str(SERVICE_ADDRESS)) for node in cluster.nodes),
    }
    assert len(found["checks"]) == 2 * len(passed)  # small packets and full-size ones


async def test_a_sysdump_has_what_each_container_sees_and_no_token(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "contexts.toml").write_text('current = "here"\n[here]\nkubernetes = true\n')
    shell, name = Shell(cluster, tmp_path), cluster.nodes[-1].name
    inside = ("exec", await pod_of(cluster, name), *OURS, "--container")
    token = await cluster.kubectl(
        *inside, "lease", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )
    await shell.type(f"kubectl {' '.join(inside)} dataplane -- flannelette sysdump -w - > {tmp_path}/pod.tar.gz")
    assert '"leases": [' in unpacked((tmp_path / "pod.tar.gz").read_bytes())[f"{name}/leases.json"]
    command = f"FLANNELETTE_CONTEXTS={tmp_path}/contexts.toml {sys.executable} -m flannelette.services.ctl.main"
    await shell.type(f"{command} sysdump -w {tmp_path}/all.tar.gz")
    files = unpacked((tmp_path / "all.tar.gz").read_bytes())
    for node in cluster.nodes:
        for file, text in {
            "firewall/iptables.txt": "FLANNEL-POSTRTG",
            "kernel/proc-devices.txt": "flannel.1:",
            "logs/pod-dataplane.txt": "service=dataplane",
            "settings-lease.json": '"kube-subnet-mgr": "true"',
            "status.json": f"{node.name} is healthy",
        }.items():
            assert text in files[f"{node.name}/{file}"], (file, files[f"{node.name}/{file}"])
    assert not [file for file, text in files.items() if token.strip() in text or token.split(".")[2].strip() in text]


async def test_the_page_looks_inside_with_and_without_rights(cluster: Cluster, tmp_path: Path) -> None:
    name = cluster.nodes[-1].name
    pod, shell = await pod_of(cluster, name), Shell(cluster, tmp_path)

    async def has_looked() -> bool:
        statuses = (await get(cluster, "pod", pod, *OURS))["status"]["ephemeralContainerStatuses"]
        return [list(each["state"]) for each in statuses] == [["terminated"]]

    (_, inside, _, beside, log, _) = (block.commands for block in PAGE["Look inside"].blocks)
    assert f"{name} is healthy" in await shell.type(f"pod={pod}; {inside}")
    await shell.type(f"pod={pod}; {beside}")
    await until(has_looked)
    assert f"{name} is healthy" in await shell.type(f"pod={pod}; {log}")
