"""What the kernel did with a packet, as Explain tells it, in all three firewalls."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from flannelette.masq.v1 import masq_pb2 as pb

from services.core.errors import LostRace
from services.core.family import FAMILIES, IPV4, Family
from services.core.lease import Lease, Subnet
from services.core.table import Step, Table, Upserted
from services.masq.explainer import Explainer
from services.masq.firewalls.nftables import tracing
from services.masq.firewalls.nftables.listing import texts
from services.masq.firewalls.signs import Lookout
from services.masq.reconciler import Reconciler
from services.runtime.health import Health
from tests.kernel.masq_host import DUAL, DUAL_CHAINS, SETTINGS, SUBNETS, Host, entered, put_right
from tests.kernel.masq_lab import FIREWALLS, IN, MARKED_PORT, Lab, mark_a_port, ports, source_seen
from tests.lease_service import eventually
from tests.namespaces import NamespaceMaker
from tests.patience import PATIENCE

LEASE = Lease("10.5.27.0-24", "n1", tuple(map(Subnet, SUBNETS)), "host-gw")
WATCHING = """
import asyncio, sys
from ipaddress import ip_address
from services.masq.firewalls.nftables.tracing import observe
asyncio.run(observe(ip_address(sys.argv[1]), ip_address(sys.argv[2]), 60))
"""


class Traced:
    """A lab whose rules are in place, and the explainer of its host."""

    def __init__(self, lab: Lab, host: Host, explainer: Explainer) -> None:
        self.lab = lab
        self.host = host
        self.explainer = explainer

    def start(
        self, family: Family, sender: str, receiver: str, seconds: int = 60
    ) -> "asyncio.Task[pb.ExplainResponse]":
        addresses = IN[family.version]
        request = pb.ExplainRequest(
            source=getattr(addresses, sender), destination=getattr(addresses, receiver), trace=True
        )
        request.trace_time.FromSeconds(seconds)
        return asyncio.create_task(self.explainer.explain(request))

    async def trace(self, family: Family, sender: str, receiver: str, port: int = 0) -> pb.ExplainResponse:
        """Of a datagram that is sent as soon as the kernel watches."""
        task = self.start(family, sender, receiver)
        await self.watched()
        await source_seen(self.lab, family, sender, receiver, port or next(ports))
        return await task

    async def watched(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while "flannelette-trace" not in self.tables():  # noqa: ASYNC110 - another process may be the one
                await asyncio.sleep(0.01)

    def tables(self) -> str:
        return self.host.run("nft", "list", "tables")


@pytest.fixture(params=FIREWALLS)
async def traced(request: pytest.FixtureRequest, make_netns: NamespaceMaker, tmp_path: Path) -> AsyncIterator[Traced]:
    lab = Lab(make_netns)
    with entered(lab.host, tmp_path) as host:
        lab.firewall = FIREWALLS[request.param](tmp_path)
        mark_a_port(host, request.param)
        await put_right(lab.firewall, DUAL_CHAINS)
        reconciler = Reconciler("n1", SETTINGS, 3600, lab.firewall, Health())
        table = Table()
        table.fold(Step(reset=True, network=DUAL, changes=(Upserted(LEASE),), synced=True))
        reconciler.learn(table, away="")
        yield Traced(lab, host, Explainer(reconciler))
        await lab.firewall.close()


def ours(trace: pb.Trace) -> list[str]:
    """The rules of ours that matched."""
    return [step.rule for step in trace.steps if step.reason]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_a_masqueraded_packet_is_followed_to_the_address_that_it_leaves_under(
    family: Family, traced: Traced
) -> None:
    response = await traced.trace(family, "pod", "outside")
    trace, addresses = response.trace, IN[family.version]
    assert trace.packet.startswith("UDP ")
    assert addresses.pod in trace.packet
    assert (trace.source, trace.interface, trace.as_explained) == (addresses.host, "eth", True)
    assert trace.explanation == f"It left by eth under {addresses.host}."
    assert "flannelette-trace" not in traced.tables()
    if traced.lab.firewall.name != "iptables-legacy":
        assert response.rules[-1].text in ours(trace)
        assert len(ours(trace)) == (2 if traced.lab.firewall.name == "nftables" else 4)  # there the jumps are rules


@pytest.mark.parametrize("family", FAMILIES, ids=str)
async def test_a_packet_that_keeps_its_address_is_followed_too(family: Family, traced: Traced) -> None:
    trace = (await traced.trace(family, "pod", "other_pod")).trace
    assert (trace.source, trace.interface, trace.as_explained) == (IN[family.version].pod, "vtep", True)
    assert trace.explanation == "It left by vtep under its own address."


async def test_what_the_node_itself_sends_is_followed(traced: Traced) -> None:
    trace = (await traced.trace(IPV4, "host", "other_pod")).trace
    assert (trace.source, trace.interface, trace.as_explained) == (IN[4].vtep, "vtep", True)


async def test_what_kube_proxy_marked_is_judged_by_the_mark_that_it_had(traced: Traced) -> None:
    trace = (await traced.trace(IPV4, "pod", "outside", MARKED_PORT)).trace
    assert (trace.source, trace.as_explained) == (IN[4].pod, True)
    assert all(step.mark == 0x4000 for step in trace.steps[1:])


async def test_what_drops_a_packet_is_named(traced: Traced) -> None:
    traced.host.run("nft", "add table ip strict")
    traced.host.run("nft", "add chain ip strict f { type filter hook forward priority 5; }")
    traced.host.run("nft", "add rule ip strict f ip daddr 192.0.2.9 counter drop")
    task = traced.start(IPV4, "pod", "outside")
    await traced.watched()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(source_seen(traced.lab, IPV4, "pod", "outside", next(ports)), 0.5)
    trace = (await task).trace
    assert not trace.as_explained
    assert trace.source == ""
    assert trace.explanation.startswith("It was dropped in strict f: ip daddr 192.0.2.9 counter packets")


async def test_another_programs_rule_that_came_first_is_shown_and_said(traced: Traced) -> None:
    if traced.lab.firewall.name == "iptables-legacy":
        traced.host.iptables("-t nat -I POSTROUTING -s 10.5.27.0/24 -j ACCEPT")
    else:
        traced.host.run("nft", "add table ip early")
        traced.host.run("nft", "add chain ip early p { type nat hook postrouting priority 50; }")
        traced.host.run("nft", "add rule ip early p ip saddr 10.5.27.2 snat to 192.0.2.77")
    task = traced.start(IPV4, "pod", "outside")
    await traced.watched()
    with traced.lab.pod.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.sendto(b"x", (IN[4].outside, next(ports)))
    trace = (await task).trace
    if traced.lab.firewall.name == "iptables-legacy":
        assert trace.explanation.endswith(
            "under its own address. That is not what our rules say: another program's rule came first."
        )
        assert not trace.as_explained
    else:
        assert trace.source == "192.0.2.77"
        assert any("snat to 192.0.2.77" in step.rule for step in trace.steps)


async def test_without_such_a_packet_it_says_what_to_do_and_leaves_nothing(traced: Traced) -> None:
    response = await traced.start(IPV4, "pod", "outside", seconds=1)
    assert response.trace.explanation.startswith("No such packet came within 1 s: send one meanwhile")
    assert response.masqueraded
    assert "flannelette-trace" not in traced.tables()


async def test_packets_of_older_connections_are_told_apart(traced: Traced) -> None:
    with traced.lab.outside.inside():
        receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiving.bind(("", next(ports)))
    with traced.lab.pod.inside():
        sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sending.connect((IN[4].outside, receiving.getsockname()[1]))
    with receiving, sending:
        sending.send(b"x")
        receiving.sendto(b"y", receiving.recvfrom(9)[1])
        sending.recv(9)
        for seconds in (1, 4, 16):  # on a machine that is very busy they come too late
            task = traced.start(IPV4, "pod", "outside", seconds=seconds)
            await traced.watched()
            for _ in range(3):
                sending.send(b"x")
            said = (await task).trace.explanation
            if said.startswith(f"No connection began within {seconds} s, but 3 packets of older ones"):
                break
        else:
            raise AssertionError(said)


async def test_calls_are_answered_while_a_listing_of_foreign_rules_is_stuck(
    traced: Traced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    stuck = ("sh", "-c", f"echo $$ >{started}.new && mv {started}.new {started} && exec sleep 600")
    monkeypatch.setattr(tracing, "texts", partial(texts, program=stuck))
    traced.host.run("nft", "add table ip foreign")
    traced.host.run("nft", "add chain ip foreign f { type filter hook forward priority 5; }")
    traced.host.run("nft", "add rule ip foreign f counter")
    task = traced.start(IPV4, "pod", "outside")
    await traced.watched()
    await source_seen(traced.lab, IPV4, "pod", "outside", next(ports))
    await eventually(started.exists)
    pod, outside = IN[4].pod, IN[4].outside
    response = await traced.explainer.explain(pb.ExplainRequest(source=pod, destination=outside))
    assert response.masqueraded
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


async def test_a_listing_that_fails_leaves_the_rules_without_words(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "texts", partial(texts, program=("false",)))
    trace = (await traced.trace(IPV4, "pod", "outside")).trace
    assert trace.explanation == f"It left by eth under {IN[4].host}."
    if traced.lab.firewall.name != "iptables-legacy":
        assert any(step.rule.startswith("rule with handle ") for step in trace.steps)


async def test_a_trace_that_is_given_up_is_gone(traced: Traced) -> None:
    task = traced.start(IPV4, "pod", "outside")
    await traced.watched()
    with pytest.raises(LostRace, match="another packet is being traced"):
        await traced.start(IPV4, "pod", "outside")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "flannelette-trace" not in traced.tables()


async def test_the_kernel_removes_the_trace_of_a_killed_process_and_it_never_changes_the_choice(
    traced: Traced,
) -> None:
    process = traced.host.start(sys.executable, "-c", WATCHING, IN[4].pod, IN[4].outside)
    await traced.watched()
    traced.host.run("nft", "flush", "ruleset")
    assert "flannelette-trace" in traced.tables(), "a table with an owner is its owner's alone"
    assert not Lookout().signs().nft_rules, "it is no sign of which firewall the host uses"
    process.send_signal(signal.SIGKILL)
    process.wait()
    async with asyncio.timeout(PATIENCE):
        while "flannelette-trace" in traced.tables():  # noqa: ASYNC110 - the kernel says nothing then
            await asyncio.sleep(0.01)
