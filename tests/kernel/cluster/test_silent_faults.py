"""What is in the way of packets and not ours is found and named, and the command that is told cures it.

Regression tests of hole 11.
"""

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.masq.v1 import masq_pb2
from tests.faults.silent_scene import Kind, Pods, pod_address, state_of, two_pods
from tests.findings.table import FAULTS
from tests.findings.words import HEALTHY, words
from tests.patience import PATIENCE
from tests.shared import Shared, sharing
from tests.waiting import equals, eventually

FAMILIES = {4: "ipv4", 6: "ipv6"}
Scenes: TypeAlias = Shared[Kind, Pods]
pytestmark = pytest.mark.asyncio(loop_scope="module")


def kind_of(name: str, version: int) -> Kind:
    fault = FAULTS[name]
    has_masq = fault.service == "masq"
    return Kind(fault.backend, "dual" if has_masq else FAMILIES[version], fault.is_far, has_masq, fault.is_probed)


ROWS = sorted(
    ((name, version) for name, fault in FAULTS.items() for version in fault.versions), key=lambda row: kind_of(*row)
)
"""Those of one kind of scene follow each other."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Scenes]:
    async with sharing(two_pods, state_of) as shared:
        yield shared


@pytest.mark.parametrize(("name", "version"), ROWS, ids=[f"{name}-ipv{version}" for name, version in ROWS])
async def test_a_silent_fault_is_named_and_its_cure_helps(scenes: Scenes, name: str, version: int) -> None:
    fault = FAULTS[name]
    async with scenes.borrowed(kind_of(name, version)) as pods:
        ((own, peer),) = (row for row in pods.hosts.rows if row[0].version == version)
        said = words(own, peer) | {"directory": str(pods.hosts.cluster.directory), "n2": pods.hosts.n2.name}
        assert not (await pods.status(fault.service)).findings
        started = time.monotonic()
        await pods.n1(fault.act.format_map(said))
        if not fault.is_told:
            await pods.running.resync()
        found = await pods.found(fault.check, fault.service)
        keep(name, version, found, time.monotonic() - started)
        status = await pods.status(fault.service)
        is_answered = await pods.flows(version)
        assert is_like(found.problem, fault.problem.format_map(said)), status
        assert is_like(found.cause, fault.cause.format_map(said)), status
        assert is_like(found.evidence, fault.evidence.format_map(said)), status
        assert is_like(found.cure, fault.cure.format_map(said)), status
        assert is_answered is fault.is_answered
        if isinstance(status, pb.Status):
            assert isinstance(found, pb.Finding)
            assert list(found.peers) == (["n2"] if fault.says in ("peer", "part") else []), status
            if fault.says != "device":
                assert status.peers.failed == (fault.says == "peer"), status
        assert len(status.findings) == 1, status
        assert status.ready is (fault.says not in ("node", "device")), status
        assert any(reason.startswith("forwarding is broken") for reason in status.reasons) is not status.ready
        await pods.n1(fault.undo.format_map(said) or found.cure)
        if not fault.is_told:
            await pods.running.resync()
        await pods.until_nothing_is_found(fault.service)
        await pods.n1(fault.and_then.format_map(said))
        await pods.until_it_flows(version)
        await pods.running.until(peers=1)


def is_like(told: str, wanted: str) -> bool:
    """Whether it is what is wanted, in which `*` stands for what differs from run to run."""
    return re.fullmatch(".*".join(map(re.escape, wanted.split("*"))), told) is not None


def keep(name: str, version: int, found: pb.Finding | masq_pb2.Finding, seconds: float) -> None:
    """For the table, if somebody measures."""
    line = {"fault": name, "version": version, "found_ms": round(seconds * 1000)}
    line |= {key: getattr(found, key) for key in ("problem", "cause", "cure", "evidence")}
    print(json.dumps(line))
    if path := os.environ.get("FLANNELETTE_FINDINGS"):
        with Path(path).open("a") as file:
            file.write(f"{json.dumps(line)}\n")


@pytest.mark.parametrize(
    ("selector", "is_broken"),
    [
        ("src 10.5.27.2 dst 0.0.0.0/0", True),
        ("src 10.5.27.0/24 dst 10.5.53.0/24 proto icmp", True),
        ("src 10.5.27.64/26 dst 0.0.0.0/0", False),
        ("src 10.5.27.2 dst 10.5.53.128/25", False),
        ("src 0.0.0.0/0 dst 10.5.53.128/25", False),
        ("src 10.5.27.0/24 dst 0.0.0.0/0 proto tcp dport 25", False),
        ("src 10.5.27.0/24 dst 0.0.0.0/0 proto esp", False),
    ],
)
async def test_an_ipsec_policy_weighs_as_much_as_it_blocks(scenes: Scenes, selector: str, is_broken: bool) -> None:
    async with scenes.borrowed(Kind()) as pods:
        await pods.n1(f"ip xfrm policy add dir fwd {selector} action block")
        await pods.running.resync()
        found = await pods.found("xfrm-block")
        assert isinstance(found, pb.Finding)
        assert found.broken is is_broken, found
        assert await pods.flows() is not is_broken
        await pods.n1(found.cure)
        await pods.running.resync()
        await pods.until_nothing_is_found()
        await pods.until_it_flows()


async def test_an_ipsec_policy_about_one_peer_leaves_the_node_ready_for_the_others(scenes: Scenes) -> None:
    async with scenes.borrowed(Kind()) as pods:
        cluster = pods.hosts.cluster
        name = await cluster.join("n3", "10.99.0.13", "0e:9d:40:24:9e:77", "10.5.97.0/24")
        await pods.running.until(peers=2)
        await pods.n1("ip xfrm policy add dir fwd src 10.5.27.0/24 dst 10.5.97.0/24 action block")
        await pods.running.resync()
        found = await pods.found("xfrm-block")
        assert found.problem == "Packets between pods of this node and n3 are dropped."
        status = await pods.running.status()
        assert (list(status.findings[0].peers), status.ready, status.peers.failed) == (["n3"], True, 1), status
        assert await pods.flows()
        await pods.n1(found.cure)
        await cluster.leave("n3", name)
        await pods.running.until(peers=1)
        await pods.running.resync()
        await pods.until_nothing_is_found()


async def test_a_gateway_of_the_detour_that_answers_nothing_is_no_second_problem(scenes: Scenes) -> None:
    async with scenes.borrowed(Kind()) as pods:
        await pods.n1("ip route del 10.99.0.0/16 dev eth0")
        found = await pods.found("underlay-network")
        for _ in range(2):
            assert not await pods.flows()
        async with asyncio.timeout(PATIENCE):
            while "FAILED" not in pods.hosts.cluster.run("ip neigh show 10.99.0.1 dev eth0"):
                await pods.flows()
        await pods.running.resync()
        assert [each.check for each in (await pods.running.status()).findings] == ["underlay-network"]
        await pods.n1(found.cure)
        await pods.until_nothing_is_found()
        await pods.until_it_flows()


async def test_a_route_of_a_table_that_no_rule_leads_to_any_more_is_no_cure(scenes: Scenes) -> None:
    async with scenes.borrowed(kind_of("way-to-the-underlay-gone", 4)) as pods:
        await pods.n1("ip route add default via 10.99.0.1 table 99 && ip rule add priority 100 lookup 99")
        await pods.n1((await pods.found("peer-route")).cure)
        await pods.until_nothing_is_found()
        await pods.n1(
            "ip rule del priority 100 && ip rule del priority 99 && ip route del default && ip route flush table 99"
        )
        found = await pods.found("underlay-route")
        assert found.cure == "ip route replace default via 10.99.0.1 dev eth0 proto boot"
        assert not await pods.flows()
        await pods.n1(found.cure)
        await pods.until_nothing_is_found()
        await pods.until_it_flows()


async def test_the_overlays_device_forwards_again(scenes: Scenes) -> None:
    async with scenes.borrowed(Kind()) as pods:
        with pods.stream() as stream:
            async with stream:
                await asyncio.sleep(0.2)
                await pods.n1("sysctl -qw net/ipv4/conf/flannel.1/forwarding=0")
                await eventually(
                    lambda: pods.hosts.cluster.run("sysctl -n net/ipv4/conf/flannel.1/forwarding").strip(),
                    equals("1"),
                )
                await asyncio.sleep(0.5)
        await pods.until_it_flows()
        await pods.until_nothing_is_found()
        assert len(stream.lost) * stream.INTERVAL < PATIENCE / 4


async def test_the_command_line_names_a_silent_fault_and_its_cure(scenes: Scenes) -> None:
    async with scenes.borrowed(Kind(families="ipv4")) as pods:
        assert await pods.flannelette("doctor", "dataplane") == (0, "n1: no problems found\n")
        await pods.n1("ip rule add priority 100 to 10.5.53.0/24 blackhole")
        await pods.found("peer-route")
        code, text = await pods.flannelette("doctor", "dataplane")
        assert code == 1
        assert "ip rule add priority 99 from all to 10.5.53.0/24 lookup main" in text
        assert "Packets from pods do not reach n2. The rule `100: from all to 10.5.53.0/24 blackhole` drops " in text
        code, text = await pods.flannelette("peers")
        assert code == 1
        assert "unreachable: The rule `100: from all to 10.5.53.0/24 blackhole` drops these packets." in text
        await pods.n1("ip rule add priority 90 iif cni0 prohibit")
        await pods.running.until(ready=False)
        code, text = await pods.flannelette("status")
        assert code == 1
        assert text.startswith(
            "n1 is not healthy: forwarding is broken: Packets from pods do not reach any peer. The rule"
        )


async def test_a_rule_that_sends_one_port_of_pods_another_way_is_named_and_its_cure_helps(scenes: Scenes) -> None:
    """One that refuses it is somebody's will."""
    async with scenes.borrowed(Kind(families="ipv4")) as pods:
        await pods.n1(
            "ip link add acc0 type veth peer acc1; ip link set acc0 up; ip link set acc1 up; "
            "ip route add default dev acc0 table 78; ip rule add priority 90 ipproto tcp dport 22 prohibit"
        )
        await pods.looked()
        assert not (await pods.running.status()).findings
        assert await asyncio.to_thread(_connects, pods)
        await pods.n1("ip rule add priority 91 iif cni0 ipproto tcp dport 80 lookup 78")
        finding = await pods.found("peer-route")
        assert "`91: from all iif cni0 ipproto tcp dport 80 lookup 78` sends these packets" in finding.cause
        assert finding.broken
        assert not await asyncio.to_thread(_connects, pods)
        await pods.n1(finding.cure)
        await pods.until_nothing_is_found()
        assert await asyncio.to_thread(_connects, pods)
        await pods.n1("ip rule del priority 91; ip rule del priority 90; ip link del acc0")
        await pods.n1(finding.cure.replace("rule add", "rule del"))


def _connects(pods: Pods) -> bool:
    """Whether n1's pod reaches port 80 of n2's."""
    there = pod_address(pods.hosts.rows[0][1]), 80
    with pods.pods[1].inside():
        listening = socket.create_server(there)
    with pods.pods[0].inside():
        connecting = socket.socket()
    with listening, connecting:
        connecting.settimeout(1)
        return connecting.connect_ex(there) == 0


@pytest.mark.parametrize("what", HEALTHY)
async def test_a_healthy_host_has_no_finding(scenes: Scenes, what: str) -> None:
    async with scenes.borrowed(Kind()) as pods:
        await pods.n1(HEALTHY[what])
        await pods.looked()
        assert await pods.flows()
        status = await pods.running.status()
        assert not status.findings, status
        assert status.ready


@pytest.mark.parametrize(("backend", "is_far"), [("host-gw", False), ("direct", False), ("vxlan", True)])
async def test_every_backend_is_healthy(scenes: Scenes, backend: str, is_far: bool) -> None:
    async with scenes.borrowed(Kind(backend, is_far=is_far)) as pods:
        await pods.looked()
        status = await pods.running.status()
        assert not status.findings, status
        assert status.ready


@pytest.mark.parametrize("forwarding", [1, 0])
@pytest.mark.parametrize("commands", ["ip link del veth0 && ip link del cni0", "ip link del veth0"])
async def test_a_node_without_pods_is_healthy(scenes: Scenes, commands: str, forwarding: int) -> None:
    """Also one that forwards nothing: masq warns of that, see tests/unit/masq/test_findings.py."""
    async with scenes.borrowed(Kind()) as pods:
        await pods.n1(commands)
        await pods.n1(f"sysctl -qw net.ipv4.ip_forward={forwarding} net.ipv6.conf.all.forwarding={forwarding}")
        await pods.looked()
        status = await pods.running.status()
        assert not status.findings, status
        assert status.ready
