"""`flannelette connectivity` over five nodes: all passes, and each of ten faults is named."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias
from xml.etree import ElementTree

import pytest
import pytest_asyncio

from lab.topology import SERVICE_ADDRESS
from tests.hosts.network_change import Scene, pending_scene
from tests.patience import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES: Final = ("h1", "h2", "h3", "h4", "h5")
OUTSIDE: Final = str(SERVICE_ADDRESS)
Failure: TypeAlias = tuple[str, str, str, bool]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    async with pending_scene("embedded", nodes=5) as made:
        await until_pods_are_known(made)
        yield made


async def run(scene: Scene, *words: str) -> tuple[int, str]:
    """Exit code and standard output."""
    command = [sys.executable, "-m", "services.ctl.main", "--context", "lab", *words]
    environment = os.environ | {"FLANNELETTE_CONTEXTS": str(scene.cluster.directory / "contexts.toml")}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE * 3
    )
    return done.returncode, done.stdout


async def failures(scene: Scene, *words: str) -> tuple[set[Failure], list[dict[str, Any]]]:
    """What failed: test, source, target, and whether small packets did; and all checks."""
    code, output = await run(scene, "-o", "json", "connectivity", "--outside", OUTSIDE, *words)
    checks = json.loads(output)["checks"]
    failed = [check for check in checks if check["outcome"] == "failed"]
    assert code == (1 if failed else 0)
    return {(c["test"], c["source"], c["target"], not c["size"]) for c in failed}, checks


def pair(test: str, one: str, other: str, *sizes: bool) -> set[Failure]:
    """Both directions, packets of both sizes or of these; True: small ones."""
    sizes = sizes or (True, False)
    return {(test, a, b, size) for a, b in ((one, other), (other, one)) for size in sizes}


async def until_pods_are_known(scene: Scene) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            _, checks = await failures(scene)
            if {check["target"] for check in checks if check["test"] == "pod"} == {*NAMES}:
                return


async def test_all_passes(scene: Scene) -> None:
    for host in scene.cluster.hosts:  # a kernel forgets pods that have been quiet
        host.namespace.ip("neigh", "flush", "dev", "cni0")
    code, output = await run(scene, "connectivity", "--outside", OUTSIDE)
    assert code == 0, output
    assert {line.split()[0] for line in output.splitlines()} == {"RESULT", "passed"}
    code, output = await run(scene, "connectivity", "--outside", OUTSIDE, "-o", "junit")
    root = ElementTree.fromstring(output)  # noqa: S314 - we wrote it
    tests = {suite.attrib["name"]: int(suite.attrib["tests"]) for suite in root}
    assert tests == {"overlay": 40, "underlay": 40, "pod": 40, "outside": 10}
    assert (code, root.attrib["failures"], root.attrib["skipped"]) == (0, "0", "0")


async def test_five_faults_between_nodes_are_named(scene: Scene) -> None:
    h1, h2, h3, h4, h5 = scene.cluster.hosts
    subnets = await scene.subnets()
    gateway = {name: f"{subnet.rpartition('.')[0]}.1" for name, subnet in subnets.items()}
    nowhere = f"neigh replace {h3.address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent"
    h1.namespace.run(*f"iptables -I INPUT -s {h2.address} -p udp --dport 8472 -j DROP".split())
    too_large = f"-I INPUT -s {h3.address} -p udp --dport 8472 -m length --length 1431: -j DROP"
    h4.namespace.run("iptables", *too_large.split())
    h5.namespace.ip(*f"rule add to {subnets['h1']} blackhole prio 10".split())
    h2.namespace.ip(*nowhere.split())
    h4.namespace.run(*f"iptables -t raw -A PREROUTING -s {gateway['h5']} -d {subnets['h4']} -j DROP".split())
    try:
        failed, checks = await failures(scene)
    finally:
        for host in (h1, h4):
            host.namespace.run(*"iptables -D INPUT 1".split())
        h4.namespace.run(*"iptables -t raw -F PREROUTING".split())
        h5.namespace.ip("rule", "del", "prio", "10")
        h2.namespace.ip(*f"neigh del {h3.address} dev eth0".split())
    both = ("overlay", "pod")
    assert failed == {
        *(key for test in both for key in pair(test, "h1", "h2")),
        *(key for test in both for key in pair(test, "h3", "h4", False)),
        *(key for test in both for key in pair(test, "h1", "h5")),
        *(key for test in (*both, "underlay") for key in pair(test, "h2", "h3")),
        ("pod", "h5", "h4", True),
        ("pod", "h5", "h4", False),
    }
    assert "Invalid argument" in {c["reason"] for c in checks if (c["source"], c["target"]) == ("h5", "h1")}


async def test_five_faults_of_single_nodes_are_named(scene: Scene) -> None:
    h1, h2, h3, _, h5 = scene.cluster.hosts
    pod = str(next(pod.address for pod in scene.pods if pod.host == h5))
    stopped = scene.dataplane("h4")
    h1.namespace.run(*f"iptables -I INPUT -d {h1.address} -p icmp --icmp-type echo-request -j DROP".split())
    h2.namespace.run(*f"iptables -t raw -A OUTPUT -d {OUTSIDE} -j DROP".split())
    h3.namespace.run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    stopped.signal(signal.SIGSTOP)
    h5.pod.ip("link", "set", "eth0", "down")
    try:
        failed, checks = await failures(scene, "--pod", pod)
    finally:
        h1.namespace.run(*"iptables -D INPUT 1".split())
        h2.namespace.run(*"iptables -t raw -F OUTPUT".split())
        h3.namespace.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        stopped.signal(signal.SIGCONT)
        h5.pod.ip("link", "set", "eth0", "up")
    asking = ("h1", "h2", "h3", "h5")
    assert failed == {
        *(("underlay", name, "h1", size) for name in asking for size in (True, False) if name != "h1"),
        *(("outside", "h2", OUTSIDE, size) for size in (True, False)),
        *(("pod", name, "h3", size) for name in asking for size in (True, False) if name != "h3"),
        ("overlay", "h4", "all", True),
        *(("pod", name, pod, size) for name in asking for size in (True, False)),
    }
    reasons = {(c["test"], c["source"]): c["reason"] for c in checks if c["outcome"] == "failed"}
    assert "did not answer within" in reasons["overlay", "h4"]
    assert reasons["outside", "h2"] == "Operation not permitted"
