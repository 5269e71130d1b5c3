"""`flannelette explain` accuses nobody on a healthy host, names what drops a packet, and leaves nothing behind.

Regression tests of hole 18.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.family import IPV4
from tests.ctl.process import Ran, run
from tests.hosts.four_hosts import IN, Lab, ports, source_seen
from tests.hosts.masq import Host, entered
from tests.hosts.namespaces import NamespaceMaker
from tests.pages.document import sections
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.services.masq import Masq, acquire, lease_service, masq_on
from tests.waiting import equals, eventually, has

PAGE = ROOT / "docs" / "operations.md"
HINTS = {
    "iptables-legacy": "iptables-legacy -t mangle -N KUBE-IPTABLES-HINT",
    "iptables-nft": "iptables-nft -t mangle -N KUBE-IPTABLES-HINT",
    "nftables": "true",
}


@dataclass
class Node:
    """A host between a pod and the outside, and masq on it."""

    lab: Lab
    host: Host
    masq: Masq

    async def ctl(self, *words: str) -> Ran:
        return await run(self.masq.directory, *words)


@pytest.fixture(params=HINTS)
async def node(request: pytest.FixtureRequest, make_netns: NamespaceMaker, tmp_path: Path) -> AsyncIterator[Node]:
    lab = Lab(make_netns)
    with entered(lab.host, tmp_path) as host:
        host.run(*HINTS[request.param].split())
        how = "nftables" if request.param == "nftables" else "auto"
        with lease_service(host) as leases:
            async with masq_on(host, "--ip-masq", f"--firewall={how}") as masq:
                await acquire(leases)
                assert (await masq.until()).firewall == request.param
                yield Node(lab, host, masq)


async def test_explain_accuses_nobody_on_a_healthy_host(node: Node) -> None:
    outside = await node.ctl("explain", "pod", IN[4].outside)
    assert outside.code == 0
    assert outside.out.startswith(
        f"{IN[4].pod} to {IN[4].outside}: leaves under the address of the interface it leaves by. "
    )
    inside = await node.ctl("explain", "pod", IN[4].other_pod)
    assert inside.code == 0
    assert inside.out.startswith(f"{IN[4].pod} to {IN[4].other_pod}: the source address stays")
    assert "drop" not in (outside.out + inside.out).lower()


async def test_a_network_without_masquerade_is_explained_and_can_be_changed_live(node: Node) -> None:
    config = node.host.lock.parent / "net-conf.json"
    before = config.read_text()
    changed = before.replace("{", '{"NoMasquerade":["192.0.2.0/24"],', 1)
    for text, words, source in (
        (changed, "These hosts have a route back to pods", IN[4].pod),
        (before, "leaves under the address of the interface", IN[4].host),
    ):
        config.write_text(text)
        await eventually(partial(node.ctl, "explain", "pod", IN[4].outside), partial(_says, words))
        # The rules follow what is explained.
        await eventually(lambda: source_seen(node.lab, IPV4, "pod", "outside", next(ports)), equals(source))


async def test_a_rule_against_pods_addresses_is_broken_only_where_they_leave_the_host(node: Node) -> None:
    config = node.host.lock.parent / "net-conf.json"
    before = config.read_text()
    node.host.run("ip", "route", "add", "default", "via", IN[4].outside)
    rule = "oifname eth ip saddr 10.5.0.0/16 drop"
    node.host.run("nft", f"table ip f {{ chain p {{ type filter hook postrouting priority 150; {rule}; }}; }}")
    changed = before.replace("{", '{"NoMasquerade":["0.0.0.0/0"],', 1)
    for text, is_broken in ((before, False), (changed, True), (before, False)):
        config.write_text(text)
        await eventually(partial(_is_lost, node.lab), has(int(is_broken)))
        status = await eventually(node.masq.status, partial(_has_broken, is_broken))
        assert status.ready is not is_broken, status


def _has_broken(is_broken: bool, status: pb.Status) -> bool:
    return any(each.broken for each in status.findings) is is_broken


async def _is_lost(lab: Lab) -> list[str]:
    """What a datagram of the pod to the outside meets: nothing, where it arrives."""
    try:
        async with asyncio.timeout(1):
            await source_seen(lab, IPV4, "pod", "outside", next(ports))
    except TimeoutError:
        return ["lost"]
    return []


def _says(words: str, ran: Ran) -> bool:
    return words in ran.out


async def test_a_trace_is_refused_and_nft_is_named(node: Node) -> None:
    ran = await node.ctl("explain", "--trace", "pod", IN[4].outside)
    assert (ran.code, ran.out) == (2, "")
    assert "nft monitor trace" in ran.err
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await node.masq.stub.Explain(pb.ExplainRequest(destination=IN[4].outside, trace=True))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "nft monitor trace" in str(error.value.details())


@pytest.mark.parametrize("node", ["nftables"], indirect=True)
async def test_what_the_page_says_to_type_follows_a_packet(node: Node) -> None:
    (block,) = next(s for s in sections(PAGE) if s.title == "Following a packet").blocks
    text = block.commands.replace("10.5.1.2", IN[4].pod).replace("192.0.2.1", IN[4].outside)
    *before, monitor, after = text.splitlines()
    for line in before:
        node.host.run("sh", "-c", line)
    command = node.host.netns.command(*monitor.partition("#")[0].split())
    nft = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert nft.stdout
    reading = asyncio.create_task(_line_with(nft.stdout, b"flannelette postrtg"))
    try:
        async with asyncio.timeout(PATIENCE):
            while not reading.done():  # nft may not listen yet when the first one passes
                await source_seen(node.lab, IPV4, "pod", "outside", next(ports))
                await asyncio.sleep(0.05)  # what is there at once is read without a turn of the loop
    finally:
        reading.cancel()
        nft.kill()
        await nft.wait()
    node.host.run("sh", "-c", after)
    assert "look" not in node.host.run("nft", "list", "tables")


async def _line_with(stream: asyncio.StreamReader, text: bytes) -> None:
    while text not in (line := await stream.readline()):
        assert line, "nft ended by itself"


CULPRITS = {
    "legacy raw": ("iptables-legacy -t raw -A PREROUTING -d {net} -j DROP", "`-A PREROUTING -d {net} -j DROP`"),
    "nft mangle": (
        "iptables-nft -t mangle -A POSTROUTING -s {net} -j DROP",
        "chain POSTROUTING of table mangle (iptables-nft)",
    ),
    "legacy policy": (
        "iptables-legacy -P FORWARD DROP",
        "The policy of chain FORWARD of table filter (iptables-legacy) is DROP",
    ),
    "nft policy": (
        "iptables-nft -P FORWARD DROP",
        "The policy of chain FORWARD of table filter (iptables-nft) is drop",
    ),
}
OURS = {"iptables-legacy": "legacy policy", "iptables-nft": "nft policy"}


@pytest.mark.parametrize("culprit", CULPRITS)
async def test_explain_names_what_drops_a_packet_and_its_cure_helps(culprit: str, node: Node) -> None:
    command, text = (each.format(net="10.5.0.0/16") for each in CULPRITS[culprit])
    node.host.run(*command.split())
    if OURS.get((await node.masq.status()).firewall) == culprit:  # our rules come first there
        assert (await node.ctl("explain", "pod", IN[4].other_pod)).code == 0
        await source_seen(node.lab, IPV4, "pod", "other_pod", next(ports))
        return
    ran = await node.ctl("explain", "pod", IN[4].other_pod)
    assert ran.code == 1
    assert text in ran.out
    cure = ran.out.splitlines()[-1].partition(" Cure: ")[2]
    node.host.run("sh", "-c", cure)
    assert (await node.ctl("explain", "pod", IN[4].other_pod)).code == 0
    await source_seen(node.lab, IPV4, "pod", "other_pod", next(ports))
