"""Firewalls as hosts have them: broken exactly if packets are lost, named, and cured; nothing else is opened."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from flannelette.masq.v1 import masq_pb2 as pb
from tests.faults.silent_scene import Kind, Pods, two_pods
from tests.findings.firewall_rows import FIREWALL_FAULTS
from tests.findings.firewall_shapes import SHAPES, Shape
from tests.findings.words import words
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.two_hosts import EXAMPLES
from tests.hosts.watched_node import WatchedNode
from tests.modules import need_modules
from tests.patience import PATIENCE, pauses

pytestmark = pytest.mark.asyncio(loop_scope="module")
OURS = {"peer: VXLAN"}
"""The tunnel from the peer."""
FORGED = {"stranger: a pod, as a pod of the peer", "stranger: a pod, as another pod of the node"}
"""What a policy of firewalld, which knows zones and no interfaces, cannot tell from packets of pods: only a strict
reverse path filter does, which this host does not have.
"""
NEEDS = {
    "ipset ": "ip_set",
    "--match-set": "xt_set",
    "-m iprange": "xt_iprange",
    "-m length": "xt_length",
    "-m limit": "xt_limit",
    "-m mac": "xt_mac",
    "-m multiport": "xt_multiport",
    "-m time": "xt_time",
    "-j CT": "xt_CT",
    "hook egress": "nf_tables_egress",
    "table bridge": "nf_tables_bridge",
}
"""What of a firewall not every kernel has, and the module for it."""
BANS = ("fail2ban-client", "cscli")
"""Programs that lift a ban: then the peer may what it might before."""
ROWS = {
    name: Shape(fault.act.format_map(said), "dropped", "", stands_in=fault.undo.format_map(said))
    for name, fault in FIREWALL_FAULTS.items()
    if fault.check.startswith("firewall-") and (said := words(*EXAMPLES[4]))
}
"""The rows of the table in docs/operations.md."""


@dataclass
class Scene:
    """Two nodes with a pod each, and what n1's firewall was at the beginning."""

    pods: Pods
    node: WatchedNode
    saved: str

    async def typed(self, line: str) -> None:
        await self.pods.n1(line)

    async def restore(self) -> None:
        """The firewall is as it was."""
        await self.typed(
            f"printf 'flush ruleset\\n' | cat - {self.saved} | nft -f - && "
            f"iptables-legacy-restore < {self.saved}.legacy && "
            "if command -v ipset >/dev/null; then ipset destroy; fi"
        )
        await self.pods.until_nothing_is_found("masq")

    async def settled(self, *, found: bool) -> pb.Status:
        """The status once there is a finding, or was none for two looks."""
        pause, quiet = pauses(), 0
        async with asyncio.timeout(PATIENCE):
            while True:
                status = await self.pods.status("masq")
                assert isinstance(status, pb.Status)
                quiet = quiet + 1 if bool(status.findings) is found else 0
                if quiet > (0 if found else 3):
                    return status
                await asyncio.sleep(next(pause))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    make = NamespaceMaker()
    async with two_pods(Kind(families="ipv4", has_masq=True)) as pods:
        with ExitStack() as ending:
            ending.callback(make.close)
            node = WatchedNode(make, pods.hosts.cluster.namespace, pods.hosts.n2, pods.pods)
            ending.enter_context(node.listening())
            saved = str(pods.hosts.cluster.directory / "firewall")
            await pods.n1(f"nft -s list ruleset > {saved} && iptables-legacy-save > {saved}.legacy")
            yield Scene(pods, node, saved)


def rules(scene: Scene) -> list[str]:
    """Every rule and policy of n1, without counters."""
    run = scene.pods.hosts.cluster.run
    text = f"{run('nft -s list ruleset')}\n{run('iptables-legacy-save')}"
    lines = (line.partition(" [")[0].strip() for line in text.splitlines())
    return [line for line in lines if not line.startswith(("#", ":")) or "DROP" in line]


@pytest.mark.parametrize("name", [*SHAPES, *ROWS])
async def test_a_firewall_is_broken_exactly_if_it_loses_packets_and_its_cure_opens_nothing_else(
    scene: Scene, name: str
) -> None:
    shape = SHAPES.get(name) or ROWS[name]
    need_modules(*(module for part, module in NEEDS.items() if part in shape.act))
    assert not await asyncio.to_thread(scene.node.lost)
    try:
        await scene.typed(shape.act)
        status = await scene.settled(found=bool(shape.named))
        lost, reached = await asyncio.to_thread(scene.node.lost), await asyncio.to_thread(scene.node.reached)
        before = await asyncio.to_thread(rules, scene)
        assert bool(lost) is (shape.is_broken or shape.is_policy), lost
        assert any(each.broken for each in status.findings) is (bool(lost) and not shape.is_policy), status
        assert status.ready is not any(each.broken for each in status.findings)
        if not shape.named:
            assert not status.findings
            return
        said = [f"{each.problem} {each.cause}" for each in status.findings]
        assert any(shape.named in each for each in said), said
        cures = [each.cure for each in status.findings if each.cure]
        assert not shape.cure or any(cure.startswith(shape.cure) for cure in cures), cures
        await _cured(scene, shape, cures)
        assert not await asyncio.to_thread(scene.node.lost)
        opened = await asyncio.to_thread(scene.node.reached) - reached
        is_ban = any(cure.startswith(BANS) for cure in cures)
        ours = OURS | FORGED if any("--new-policy=flannel" in cure for cure in cures) else OURS
        assert {each for each in opened if not is_ban or not each.startswith("peer")} <= ours, opened
        if not shape.stands_in:
            gone = [line for line in before if line not in rules(scene)]
            assert not gone, "no rule or policy of another program goes"
    finally:
        await scene.restore()


async def _cured(scene: Scene, shape: Shape, cures: list[str]) -> None:
    """Types the cures, or what their programs would do, until nothing is found."""
    if shape.stands_in:
        await scene.typed(shape.stands_in)
    pause, done = pauses(), set[str]()
    async with asyncio.timeout(PATIENCE):
        while cures or (await scene.pods.status("masq")).findings:
            for cure in cures if not shape.stands_in else ():
                if cure not in done:
                    done.add(cure)
                    await scene.typed(cure)
            await asyncio.sleep(next(pause))
            cures = [each.cure for each in (await scene.pods.status("masq")).findings if each.cure not in done]
            if shape.stands_in:
                cures = []


async def test_an_isolated_pod_is_explained_by_the_name_of_the_engine(scene: Scene) -> None:
    try:
        await scene.typed(SHAPES["a policy engine that isolates a pod"].act)
        code, text = await scene.pods.flannelette("explain", "10.5.53.2", "10.5.27.2", "-o", "json")
        document = json.loads(text)
        assert code == 1
        assert "A rule of kube-router drops them" in str(document)
    finally:
        await scene.restore()
