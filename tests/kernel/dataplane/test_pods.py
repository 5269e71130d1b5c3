"""Pods that real CNI plugins have made: their interfaces come back to the bridge, and what is lost is named."""

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import VXLAN, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.pods import Node, flags
from tests.patience import PATIENCE
from tests.tools import find_tool


@pytest_asyncio.fixture
async def node(netns: NetworkNamespace) -> AsyncIterator[Node]:
    find_tool("cnitool")
    make_netns = NamespaceMaker()
    with ExitStack() as ending, cluster_in(netns, VXLAN) as cluster:
        ending.callback(make_netns.close)
        netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        async with cluster.dataplane(*flags(cluster)) as running:
            await running.until()
            made = Node(cluster, running, make_netns)
            made.add_pod()
            made.add_pod()
            await made.until_it_flows()
            await made.until_found()
            yield made


@pytest.mark.parametrize("act", ["nomaster", "down", "down nomaster"])
async def test_an_interface_that_left_the_bridge_comes_back_in_seconds(node: Node, act: str) -> None:
    veth = node.pods[0][2]
    with node.pinged() as stream:
        async with stream:
            await asyncio.sleep(0.2)
            node.ip(f"link set {veth} {act}")
            await node.until_it_flows()
    assert node.master_of(veth) == "cni0", node.running.log
    assert "hairpin on" in node.cluster.run(f"bridge -d link show dev {veth}")
    assert 0 < len(stream.lost) * stream.INTERVAL < 2 * 4, stream.lost
    assert await node.flows()
    await node.until_found()
    (event,) = await node.running.events(kinds=[pb.EVENT_KIND_REPAIR])
    assert f"ip link set {veth} " in event.what


async def test_an_interface_that_left_while_no_dataplane_ran_comes_back_at_its_start(node: Node) -> None:
    veth = node.pods[0][2]
    await node.running.end(signal.SIGKILL)
    node.ip(f"link set {veth} nomaster")
    assert not await node.flows()
    node.running = Running(node.cluster, flags(node.cluster), ())
    await node.running.until()
    await node.until_it_flows()
    assert node.master_of(veth) == "cni0"


async def test_interfaces_come_back_to_a_bridge_that_was_made_anew(node: Node) -> None:
    node.ip("link del cni0")
    (found,) = await node.until_found("bridge-gone")
    assert found.broken
    assert not await node.flows()
    node.add_pod()  # for which the plugin makes the bridge
    await node.until_it_flows()
    await node.until_found()


async def test_an_interface_at_another_bridge_is_named_and_left_there(node: Node) -> None:
    _, address, veth = node.pods[0]
    node.ip("link add br1 type bridge")
    node.ip("link set br1 up")
    node.ip(f"link set {veth} master br1")
    (found,) = await node.until_found("pod-port")
    assert found.problem == f"The pod {address} of this node can neither send nor receive packets."
    assert found.cause == f"{veth} is a port of br1, and not of cni0."
    assert (found.broken, found.cure) == (True, f"ip link set {veth} master cni0")
    assert not await node.flows()
    node.ip(found.cure.removeprefix("ip "))
    await node.until_it_flows()
    await node.until_found()


async def test_a_pod_that_does_not_answer_its_own_node_is_named(node: Node) -> None:
    pod, address, _ = node.pods[1]
    pod.ip("addr", "flush", "dev", "eth0")
    (found,) = await node.until_found("pod-silent", pause=5)
    assert found.problem == f"Packets to the pod {address} of this node are lost."
    assert found.broken
    pod.ip("addr", "add", f"{address}/24", "dev", "eth0")
    await node.until_found()


async def test_a_pod_that_does_not_answer_is_named_beside_one_with_another_fault(node: Node) -> None:
    node.add_pod()
    (_, _, veth), (silent, address, _), (_, well, _) = node.pods
    node.ip("link add br1 type bridge")
    node.ip(f"link set {veth} master br1")
    silent.ip("addr", "flush", "dev", "eth0")
    port, other = await node.until_found("pod-port", "pod-silent", pause=5)
    assert (port.broken, other.broken) == (True, True)
    assert other.problem == f"Packets to the pod {address} of this node are lost."
    assert not await node.answers(address)
    assert await node.answers(well)


async def test_a_port_that_may_lose_packets_weighs_more_once_it_does(node: Node) -> None:
    pod, address, veth = node.pods[0]
    node.cluster.run(f"bridge link set dev {veth} locked on")
    (found,) = await node.until_found("pod-port")
    assert (found.problem, found.broken) == (f"The pod {address} of this node may not receive packets.", False)
    assert await node.flows()
    mac = pod.run("cat", "/sys/class/net/eth0/address").strip()
    node.cluster.run(f"bridge fdb del {mac} dev {veth} master")
    node.ip("neigh flush dev cni0")
    (found,) = await node.until_found("pod-port", pause=5, weight=True)
    assert found.problem == f"The pod {address} of this node can neither send nor receive packets."
    assert not await node.flows()
    node.cluster.run(found.cure)
    await node.until_it_flows()
    await node.until_found()


async def test_a_bridge_that_was_given_another_name_is_still_the_pods(node: Node) -> None:
    for act in ("down", "name pods0", "up"):
        node.ip(f"link set cni0 {act}" if act != "up" else "link set pods0 up")
    await node.until_it_flows()
    await node.looked()
    assert await node.flows()
    veth = node.pods[0][2]
    node.ip(f"link set {veth} nomaster")
    await node.until_it_flows()
    assert node.master_of(veth) == "pods0"


async def test_a_pod_whose_own_end_is_down_is_broken(node: Node) -> None:
    pod, address, veth = node.pods[0]
    route = pod.ip("route", "show", "default").split()
    pod.ip("link", "set", "eth0", "down")
    (found,) = await node.until_found("pod-port")
    assert (found.broken, found.cure) == (True, "")
    assert found.cause == f"{veth} has no carrier, since the end in the pod is down."
    assert not await node.answers(address)
    pod.ip("link", "set", "eth0", "up")
    pod.ip("route", "replace", *route)
    await node.until_it_flows()
    await node.until_found()


async def test_a_port_is_broken_while_the_spanning_tree_keeps_it(node: Node) -> None:
    _, address, veth = node.pods[0]
    node.ip("link set cni0 type bridge stp_state 1")
    node.ip(f"link set {veth} nomaster")
    (found,) = await node.until_found("pod-port")
    async with asyncio.timeout(PATIENCE):
        while "has left" in found.cause:
            (found,) = await node.until_found("pod-port")
    assert found.broken
    assert f"{veth} is kept in the state " in found.cause
    assert " by the spanning tree of cni0" in found.cause
    assert not await node.answers(address)
    assert found.cure == "ip link set cni0 type bridge stp_state 0"
    node.ip(found.cure.removeprefix("ip "))
    await node.until_it_flows()
    await node.until_found()


async def test_pods_send_to_the_address_that_cni_has_on_record(node: Node) -> None:
    for path in (node.state / "results").iterdir():
        path.write_text(path.read_text().replace('"10.5.27.1"', '"10.5.27.254"'))
    for act in ("del 10.5.27.1/24", "add 10.5.27.254/24"):
        node.ip(f"addr {act} dev cni0")
    for pod, _, _ in node.pods:
        pod.ip("route", "replace", "default", "via", "10.5.27.254")
    await node.looked()
    assert not await node.lost_outside(0.25)


async def test_a_bridge_that_lost_the_address_to_which_pods_send_is_broken_once_they_forget_its_mac(
    node: Node,
) -> None:
    assert not await node.lost_outside(0.25)
    for act in ("del 10.5.27.1/24", "add 10.5.27.7/24"):
        node.ip(f"addr {act} dev cni0")
    (found,) = await node.until_found("bridge-address", weight=False)
    assert found.soon
    assert not await node.lost_outside(0.25)
    assert await node.lost_outside(70)
    (found,) = await node.until_found("bridge-address", weight=True)
    assert found.cause == "The bridge cni0 has 10.5.27.7/24, and not 10.5.27.1, to which pods send."
    node.ip(found.cure.removeprefix("ip "))
    await node.until_found()
    async with asyncio.timeout(PATIENCE):
        while await node.lost_outside(0.25):
            pass


@pytest.mark.parametrize("has_record", [True, False])
async def test_pods_that_isolated_ports_keep_apart_are_broken_unless_cni_may_have_been_asked_for_it(
    node: Node, has_record: bool
) -> None:
    if not has_record:
        shutil.rmtree(node.state)
    for _, _, veth in node.pods:
        node.cluster.run(f"bridge link set dev {veth} isolated on")
    (found,) = await node.until_found("pod-port")
    assert found.broken is has_record
    assert not await node.flows()
    node.cluster.namespace.run("sh", "-c", found.cure)
    await node.until_it_flows()
    await node.until_found()


async def test_a_pod_that_is_gone_is_not_missed(node: Node) -> None:
    node.ip(f"link del {node.pods[1][2]}")
    await node.looked()


async def test_a_pod_of_the_plugin_ptp_counts_and_another_programs_container_does_not(
    netns: NetworkNamespace,
) -> None:
    make_netns = NamespaceMaker()
    with ExitStack() as ending, cluster_in(netns, VXLAN) as cluster:
        ending.callback(make_netns.close)
        results = cluster.directory / "var/lib/cni/results"
        results.mkdir(parents=True)
        container = make_netns()
        cluster.ip(f"link add other type veth peer name eth0 netns {container.name}")
        cluster.ip("link set other up")
        container.ip("link", "set", "eth0", "up")
        async with cluster.dataplane(*flags(cluster)) as running:
            await running.until()
            node = Node(cluster, running, make_netns)
            await running.resync()
            await asyncio.sleep(3)
            await node.until_found()

            for number in (2, 3):
                add_ptp_pod(node, results, number)
            (found,) = await node.until_found("forwarding-off", pause=5)
            assert found.broken
            assert not await node.flows()
            netns.run(*found.cure.split())
            await node.until_it_flows()
            await node.until_found()

            cluster.ip("route replace blackhole 10.5.27.2/32")
            (found,) = await node.until_found("own-part")
            assert found.broken
            assert not await node.flows()
            cluster.ip("link del veth2")
            await node.until_found("own-part", weight=False)


def add_ptp_pod(node: Node, results: Path, number: int) -> None:
    """As the plugins `ptp` and `bandwidth` do."""
    pod, address, veth, cluster = node.make_netns(), f"10.5.27.{number}", f"veth{number}", node.cluster
    cluster.ip(f"link add {veth} type veth peer name eth0 netns {pod.name}")
    cluster.ip(f"link set {veth} up")
    cluster.ip(f"addr add 10.5.27.1/32 dev {veth}")
    cluster.ip(f"route add {address}/32 dev {veth}")
    for line in (
        f"addr add {address}/32 dev eth0",
        "link set eth0 up",
        "route add 10.5.27.1 dev eth0",
        "route add default via 10.5.27.1",
    ):
        pod.ip(*line.split())
    interfaces = [{"name": veth}, {"name": "eth0", "sandbox": str(pod.path)}, {"name": f"bwp{number}"}]
    document = {"result": {"interfaces": interfaces, "ips": [{"address": f"{address}/32", "gateway": "10.5.27.1"}]}}
    (results / f"ptp-{number}-eth0").write_text(json.dumps(document))
    node.pods.append((pod, address, veth))
