"""Firewalls that drop the tunnel of a backend: named, with a command that accepts it from the peers and no more."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import pytest_asyncio

from flannelette.masq.v1 import masq_pb2 as pb
from lab.pings import Pinger
from lab.topology import OUTSIDE, UNDERLAY, UNDERLAY_V6, pod_address
from tests.charon.real import require_charon
from tests.flannel.three_nodes import ThreeNodes, gateways, three_nodes
from tests.hosts.masq import entered
from tests.hosts.nodes import Node
from tests.hosts.raw_packets import Packet, Sender, let_in
from tests.patience import FACTOR, PATIENCE, pauses
from tests.services.masq import Masq, masq_on
from tests.shared import Shared, sharing

pytestmark = pytest.mark.asyncio(loop_scope="module")
IPIP, UDP, ESP = 4, 17, 50
PSK: Final = "0123456789abcdef" * 6


@dataclass(frozen=True, slots=True)
class Backend:
    """What its packets look like between the nodes."""

    options: Mapping[str, Any]
    kinds: Mapping[int, tuple[tuple[int, int], ...]]
    """Protocols and ports, by IP version of the underlay."""
    modules: tuple[str, ...] = ()
    sizes: Mapping[int, int] = field(default_factory=lambda: {4: 100})
    """Of packets between pods, by their IP version."""


BACKENDS: Final = {
    "udp in user space": Backend({"Type": "udp", "Mode": "user"}, {4: ((UDP, 8285),)}),
    "udp as the kernel can": Backend({"Type": "udp", "Port": 4789}, {4: ((UDP, 4789),)}),
    "udp in the kernel": Backend({"Type": "udp", "Mode": "kernel"}, {4: ((UDP, 8285),)}, ("fou", "ipip")),
    "ipip": Backend({"Type": "ipip"}, {4: ((IPIP, 0),)}, ("ipip",)),
    "ipsec": Backend({"Type": "ipsec", "PSK": PSK}, {4: ((ESP, 0), (UDP, 500))}, ("esp4", "dummy")),
    "ipsec in UDP": Backend(
        {"Type": "ipsec", "PSK": PSK, "UDPEncap": True}, {4: ((UDP, 4500), (UDP, 500))}, ("esp4", "dummy")
    ),
    "vxlan": Backend({"Type": "vxlan"}, {4: ((UDP, 8472),), 6: ((UDP, 8472),)}, sizes={4: 100, 6: 100}),
    "wireguard": Backend(
        {"Type": "wireguard"}, {4: ((UDP, 51820),), 6: ((UDP, 51821),)}, ("wireguard",), {4: 100, 6: 100}
    ),
    "wireguard, both families over IPv6": Backend(
        {"Type": "wireguard", "Mode": "ipv6"}, {6: ((UDP, 51820),)}, ("wireguard",), {4: 100, 6: 100}
    ),
}
"""Those without IPv6 first: a network that has got it keeps it."""
_PASSES: Final = "-p {icmp} -j ACCEPT", "-i lo -j ACCEPT", "-p tcp --dport 22 -j ACCEPT"
_BOTH: Final = (("iptables", "icmp"), ("ip6tables", "icmpv6"))
FIREWALLS: Final = {
    "a last rule of iptables-legacy": (
        [
            f"{program}-legacy -A INPUT {rule.format(icmp=icmp)}"
            for program, icmp in _BOTH
            for rule in (*_PASSES, "-j REJECT")
        ],
        ["iptables-legacy -F INPUT", "ip6tables-legacy -F INPUT"],
    ),
    "a policy of iptables-nft": (
        [f"{program}-nft -A INPUT {rule.format(icmp=icmp)}" for program, icmp in _BOTH for rule in _PASSES]
        + [f"{program}-nft -P INPUT DROP" for program, _ in _BOTH],
        [f"{program}-nft {what}" for program, _ in _BOTH for what in ("-P INPUT ACCEPT", "-F INPUT")],
    ),
    "a chain of nftables": (
        [
            "nft 'table inet guard { chain input { type filter hook input priority 0; "
            'iifname "lo" accept; meta l4proto { icmp, ipv6-icmp } accept; tcp dport 22 accept; drop; }; }\''
        ],
        ["nft delete table inet guard"],
    ),
}
"""What is typed, and what ends it. All accept pings and SSH, and nothing else; no state of connections."""


@dataclass
class Scene:
    """h1 has masq and the firewall; h2 and h3 are its peers."""

    nodes: ThreeNodes
    masq: Masq

    async def type(self, commands: list[str]) -> None:
        for command in commands:
            await asyncio.to_thread(self.nodes.nodes[0].namespace.run, "sh", "-euc", command)

    async def found(self, *, any_at_all: bool) -> list[pb.Finding]:
        """The findings about the tunnel, once there are some, or none."""
        status, pause = pb.Status(), pauses()
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    status = await self.masq.status()
                    found = [each for each in status.findings if each.check == "firewall-tunnel"]
                    if bool(found) is any_at_all:
                        return found
                    await asyncio.sleep(next(pause))
        except TimeoutError:
            raise AssertionError(f"findings wanted: {any_at_all}\n{status}\n{self.masq.log.read_text()}") from None

    async def let_in(self, version: int) -> set[Packet]:
        """Who may send what to h1 in the underlay."""
        first, *peers = self.nodes.nodes
        senders = {each.name: Sender(each.namespace, str(each.host.address_of(version))) for each in peers}
        senders["stranger"] = Sender(OUTSIDE, str((UNDERLAY if version == 4 else UNDERLAY_V6)[1]))
        return await asyncio.to_thread(let_in, first.namespace, str(first.host.address_of(version)), senders)

    async def is_answered(self, source: Node, version: int) -> bool:
        """Whether a packet of a pod of this node reaches the one of h1, and the answer comes back."""
        gateway = next(each for each in gateways(self.nodes.nodes[0]) if each.version == version)
        with Pinger(source.host.pod, version) as pinger:
            return (await pinger.ping(pod_address(gateway), 0.5 * FACTOR))[1] is not None


@asynccontextmanager
async def guarded(flag: str) -> AsyncIterator[Scene]:
    async with three_nodes([flag]) as nodes:
        first = nodes.nodes[0]
        for program, _ in _BOTH:
            for kind in ("legacy", "nft"):
                first.namespace.run(f"{program}-{kind}", "-P", "INPUT", "ACCEPT")
        with entered(first.namespace, first.directory) as host:
            starting = masq_on(
                host, "--node=h1", f"--lease-address=unix:{nodes.home}/lease.sock", "--ip-masq", "--firewall=nftables"
            )
            masq = await starting.__aenter__()
        try:
            yield Scene(nodes, masq)
        finally:
            await starting.__aexit__(None, None, None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Shared[str, Scene]]:
    async with sharing(guarded) as shared:
        yield shared


def parameter(name: str) -> Any:
    modules = BACKENDS[name].modules
    return pytest.param(name, marks=pytest.mark.modules(*modules) if modules else ())


@pytest.mark.parametrize("name", [parameter(name) for name in BACKENDS])
async def test_a_firewall_that_drops_a_tunnel_is_cured_for_the_peers_alone(
    scenes: Shared[str, Scene], name: str
) -> None:
    backend = BACKENDS[name]
    if backend.options["Type"] == "ipsec":
        require_charon()
    async with scenes.borrowed("--probe-rate=0") as scene:
        await scene.nodes.choose(backend.options, ipv6=6 in backend.sizes, flanneld=False)
        await scene.nodes.reach_each_other(backend.sizes)
        await scene.found(any_at_all=False)
        for firewall, (act, undo) in FIREWALLS.items():
            await scene.type(act)
            await _cured(scene, backend, firewall)
            await scene.type(undo)
            await scene.found(any_at_all=False)


async def _cured(scene: Scene, backend: Backend, firewall: str) -> None:
    """Carries the cures out, and sees what they change."""
    before = {version: await scene.let_in(version) for version in backend.kinds}
    found = await scene.found(any_at_all=True)
    last = scene.nodes.nodes[-1]
    for version in backend.sizes:
        assert not await scene.is_answered(last, version), f"{firewall}: nothing is lost"
    assert all(each.broken for each in found), found
    cures = [each.cure for each in found]
    assert all(cures), f"{firewall}: no command\n{found}"
    done = list[str]()
    async with asyncio.timeout(PATIENCE):
        while cures:  # one firewall may have a finding for each family, and places move with what is inserted
            done.append(cures[0])
            await scene.type(cures[:1])
            await asyncio.sleep(0.1)
            cures = [each.cure for each in (await scene.masq.status()).findings if each.check == "firewall-tunnel"]
            cures = [cure for cure in cures if cure not in done]
    await scene.found(any_at_all=False)
    await scene.nodes.reach_each_other(backend.sizes)
    peers = [node.name for node in scene.nodes.nodes[1:]]
    for version, kinds in backend.kinds.items():
        opened = await scene.let_in(version) - before[version]
        assert opened == {Packet(peer, *kind) for peer in peers for kind in kinds}, (firewall, done)
