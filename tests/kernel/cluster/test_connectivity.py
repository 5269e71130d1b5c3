"""`flannelette connectivity` over five nodes: all passes; each of ten faults is named, with doctor's word on it."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from itertools import product
from xml.etree import ElementTree

import pytest
import pytest_asyncio

from tests.ctl.connectivity import OUTSIDE, Failure, all_pass, connectivity, failed, run
from tests.hosts.network_change import Scene, pending_scene
from tests.patience import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

V4, V6 = "IPv4", "IPv6"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    async with pending_scene("embedded", nodes=5, family="dual") as made:
        yield made


def ways(test: str, source: str, target: str, family: str = V4, size: str = "both") -> set[Failure]:
    """Several in one word: `overlay pod`, `h1 h2`, `IPv4 IPv6`; no node asks itself."""
    every = product(test.split(), source.split(), target.split(), family.split(), [size])
    return {key for key in every if key[1] != key[2]}


def between(test: str, one: str, others: str, family: str = V4, size: str = "both") -> set[Failure]:
    """In both directions."""
    return ways(test, one, others, family, size) | ways(test, others, one, family, size)


async def found(scene: Scene, expected: set[Failure], words: dict[tuple[str, str], str], *more: str) -> None:
    """What fails is what is expected, and doctor comes to say these words, each of a check and a node."""
    seen: object = None
    try:
        async with asyncio.timeout(3 * PATIENCE):  # each time it is five nodes' programs
            while True:
                code, document = await connectivity(scene, 2, *more)
                told = [(a["check"], node, json.dumps(a)) for a in document["problems"] for node in a["nodes"]]
                unsaid = {
                    key: [text for check, node, text in told if (check, node) == key]
                    for key, word in words.items()
                    if not any((check, node) == key and word in text for check, node, text in told)
                }
                if failed(document) == expected and code == 1 and not unsaid:
                    return
                seen = failed(document) - expected, expected - failed(document), unsaid
    except TimeoutError:
        raise AssertionError(seen) from None


async def test_all_passes_in_both_families(scene: Scene) -> None:
    await all_pass(scene, 5, 2)
    code, output = await run(scene, "connectivity", "-o", "junit")
    root = ElementTree.fromstring(output)  # noqa: S314 - we wrote it
    assert (code, root.attrib["tests"], root.attrib["failures"], root.attrib["skipped"]) == (0, "241", "0", "1")


async def test_a_pod_that_is_cut_off_is_not_left_out(scene: Scene) -> None:
    h3 = scene.cluster.hosts[2].namespace
    code, well = await connectivity(scene, 2)
    checks = len(well["checks"])
    assert code == 0
    h3.ip("link", "set", "veth0", "nomaster")
    seen: object = None
    try:
        async with asyncio.timeout(3 * PATIENCE):
            while seen != (1, checks, ways("pod", "h1 h2 h4 h5", "h3", f"{V4} {V6}"), {"pod-port"}):
                code, document = await connectivity(scene, 2)
                told = {each["check"] for each in document["problems"]}
                seen = code, len(document["checks"]), failed(document), told
    except TimeoutError:
        raise AssertionError(seen) from None
    finally:
        h3.ip("link", "set", "veth0", "master", "cni0")
    await all_pass(scene, 5, 2)


async def test_what_nobody_knows_is_not_tested_and_does_not_pass(scene: Scene) -> None:
    """A node without pods."""
    h3, pod = scene.cluster.hosts[2].namespace, scene.pods[2].namespace
    h3.ip("link", "set", "veth0", "netns", pod.name, "name", "away")
    h3.run("sh", "-c", "ip neigh flush dev cni0; ip -6 neigh flush dev cni0")
    untested, unknown = list[dict[str, str]](), "no pod is known there"
    seen: object = None
    try:
        async with asyncio.timeout(3 * PATIENCE):
            while seen != (3, 4 * 2 * 2, set(), {unknown}):  # the interface may be known for a moment longer
                code, document = await connectivity(scene, 2)
                untested = [each for each in document["checks"] if each["outcome"] == "SKIPPED"]
                seen = code, len(untested), failed(document), {each["reason"][: len(unknown)] for each in untested}
        assert {(each["test"], each["target"]) for each in untested} == {("pod", "h3")}
    except TimeoutError:
        raise AssertionError(seen) from None
    finally:
        pod.ip("link", "set", "away", "netns", h3.name, "name", "veth0")
        h3.ip("link", "set", "veth0", "master", "cni0", "up")
    await all_pass(scene, 5, 2)


async def test_five_faults_between_nodes_are_named(scene: Scene) -> None:
    h1, h2, h3, h4, h5 = scene.cluster.hosts
    subnets = {name: cidrs.split(",")[0] for name, cidrs in (await scene.subnets()).items()}
    half = subnets["h5"].replace("/24", "/25")
    one_way = f"PREROUTING -s {subnets['h3']} -d {subnets['h5']} -j DROP"
    nobody = f"{h3.address} lladdr 02:00:00:00:00:99 dev eth0"
    seeds = (
        (h1, "iptables -I INPUT -p udp --dport 8472 -j DROP", "iptables -D INPUT 1"),
        (h2, f"ip neigh replace {nobody} nud permanent", f"ip neigh del {nobody}"),
        (h4, f"ip route add blackhole {half}", f"ip route del blackhole {half}"),
        (h5, f"iptables -t raw -A {one_way}", f"iptables -t raw -D {one_way}"),
    )
    for host, act, _ in seeds:
        host.namespace.run(*act.split())
    port = ("ip", "link", "set", "h4", "mtu")  # of the underlay's bridge
    await asyncio.to_thread(subprocess.run, [*port, "1400"], check=True)
    cut = {
        *between("overlay pod", "h1", "h2 h3 h4 h5"),
        *between("overlay pod underlay", "h2", "h3"),
        *between("overlay pod", "h4", "h5"),
        *between("overlay pod", "h3", "h5"),
    }
    narrow = {
        *between("underlay", "h4", "h1 h2 h3 h5", f"{V4} {V6}", "large"),
        *(("outside", "h4", address, family, "large") for family, address in OUTSIDE.items()),
    }
    words = {
        ("firewall-tunnel", "h1"): "chain INPUT of table filter",
        ("underlay-neighbour", "h2"): "02:00:00:00:00:99",
        ("peer-route", "h4"): f"The route `blackhole {half}` takes these packets.",
        (
            "peer-tunnel",
            "h3",
        ): "Something on either node or between them drops UDP port 8472",
        ("peer-mtu", "h4"): "A link between the nodes has a smaller MTU than eth0",
    }
    try:
        await found(scene, cut | {key for key in narrow if (*key[:4], "both") not in cut}, words)
    finally:
        await asyncio.to_thread(subprocess.run, [*port, "1500"], check=True)
        for host, _, undo in seeds:
            host.namespace.run(*undo.split())


async def test_five_faults_of_single_nodes_are_named(scene: Scene) -> None:
    h1, _, h3, _, h5 = scene.cluster.hosts
    subnets = {name: cidrs.split(",")[0] for name, cidrs in (await scene.subnets()).items()}
    pod = str(next(pod.address for pod in scene.pods if pod.host == h5))
    gateway = subnets["h5"].replace(".0/24", ".1/24")
    rule = f"ip daddr {subnets['h3']} drop"
    stopped = scene.dataplane("h4")
    h1.namespace.run("sysctl", "-qw", "net.ipv4.ip_forward=0")
    await run(scene, "--on", "h2", "masq", "teardown", "--yes")
    h3.namespace.run("nft", f"table inet own {{ chain c {{ type filter hook forward priority 5; {rule}; }}; }}")
    stopped.signal(signal.SIGSTOP)
    h5.namespace.ip(*"addr add 10.77.0.1/24 dev cni0".split())
    h5.namespace.ip("addr", "del", gateway, "dev", "cni0")
    expected = {
        *ways("pod", "h2 h3 h5", "h1"),
        *ways("pod", "h1 h3 h5", "h2", f"{V4} {V6}"),
        *(("outside", "h2", address, family, "both") for family, address in OUTSIDE.items()),
        *ways("pod", "h1 h2 h5", "h3"),
        ("overlay", "h4", "all", "", "both"),
        *ways("pod", "h1 h2 h3", "h5"),
        *ways("pod", "h1 h2 h3 h5", pod),
        *ways("outside", "h5", OUTSIDE[V4]),
    }
    words = {
        ("forwarding-off", "h1"): "sysctl -w net.ipv4.ip_forward=1",
        ("", "h2"): "torn down by an operator",
        ("firewall-pods", "h3"): "chain c of table inet own",
        ("", "h4"): "does not answer",
        ("bridge-address", "h5"): "The bridge cni0 has 10.77.0.1/24",
    }
    try:
        await found(scene, expected, words, "--pod", pod)
    finally:
        h1.namespace.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        await run(scene, "--on", "h2", "resync", "masq")
        h3.namespace.run(*"nft delete table inet own".split())
        stopped.signal(signal.SIGCONT)
        h5.namespace.ip("addr", "add", gateway, "dev", "cni0")
        h5.namespace.ip(*"addr del 10.77.0.1/24 dev cni0".split())
