"""Firewalls as hosts have them: broken exactly if packets are lost, named, and cured; nothing else is opened."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from flannelette.masq.v1 import masq_pb2 as pb
from tests.faults.silent_scene import Kind, Pods, two_pods
from tests.findings.firewall_rows import FIREWALL_FAULTS
from tests.findings.firewall_shapes import DIRECT, PROGRAMS, RELOADS, SHAPES, Shape
from tests.findings.words import words
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import EXAMPLES
from tests.hosts.watched_node import PEERS_POD, WatchedNode
from tests.modules import need_modules
from tests.pages.own_files import OwnFiles
from tests.patience import PATIENCE, pauses
from tests.process_logs import started
from tests.tools import lacking
from tests.waiting import contains, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
OURS = {"peer: VXLAN"}
"""The tunnel from the peer."""
FORGED = {"stranger: a pod, as a pod of the peer", "stranger: a pod, as another pod of the node"}
"""What a policy of firewalld, which knows zones and no interfaces, cannot tell from packets of pods, and no rule can
where these come as they are: only a strict reverse path filter does, which this host does not have.
"""
NEEDS = {
    "ipset ": "ip_set",
    "hash:net,iface": "ip_set_hash_netiface",
    "bitmap:port": "ip_set_bitmap_port",
    "--ip-": "ebt_ip",
    "--ip6-": "ebt_ip6",
    "--match-set": "xt_set",
    "-m iprange": "xt_iprange",
    "-m connbytes": "xt_connbytes",
    "-m connlimit": "xt_connlimit",
    "-m quota": "xt_quota",
    "-m tcpmss": "xt_tcpmss",
    " ct count ": "nft_connlimit",
    " quota over ": "nft_quota",
    "-m length": "xt_length",
    "-m limit": "xt_limit",
    "-m mac": "xt_mac",
    "-m multiport": "xt_multiport",
    "-m time": "xt_time",
    "NETMAP": "xt_NETMAP",
    "TPROXY": "xt_TPROXY",
    " tproxy ": "nft_tproxy",
    "numgen": "nft_numgen",
    " fwd to": "nft_fwd_netdev",
    " dup to": "nft_fwd_netdev",
    "-j CT": "xt_CT",
    "CONNMARK": "xt_connmark",
    "-m devgroup": "xt_devgroup",
    "-m dscp": "xt_dscp",
    "-m owner": "xt_owner",
    "-m physdev": "xt_physdev",
    "NFQUEUE": "xt_NFQUEUE",
    " queue num": "nft_queue",
    "hook egress": "nf_tables_egress",
    "table bridge": "nf_tables_bridge",
    "ebtables": "nf_tables_bridge",
}
"""What of a firewall not every kernel has, and the module for it."""
BANS = ("fail2ban-client", "cscli")
"""Programs that lift a ban: then the peer may what it might before."""
ROWS = {
    name: Shape(
        fault.act.format_map(said),
        "dropped",
        "",
        is_of_arp=fault.check == "firewall-arp",
        stands_in=fault.undo.format_map(said),
    )
    for name, fault in FIREWALL_FAULTS.items()
    if fault.check.startswith("firewall-") and 4 in fault.versions and (said := words(*EXAMPLES[4]))
}
"""The rows of the table in docs/operations.md."""


@dataclass
class Scene:
    """Two nodes with a pod each, and what n1's firewall was at the beginning."""

    pods: Pods
    node: WatchedNode
    saved: str
    has_tunnel: bool = True
    inside: tuple[str, ...] = ()
    """What a command begins with that is typed where n1 has files of its own."""

    async def typed(self, line: str) -> str:
        n1 = self.pods.hosts.cluster.namespace
        return await asyncio.to_thread(n1.run, *self.inside, "sh", "-c", line)

    async def lost(self, *, forgotten: bool) -> set[str]:
        """What of pods does not pass; also where pods, this node or another have forgotten who their neighbours are,
        as they have half a minute later.
        """
        if not forgotten:
            return await asyncio.to_thread(self.node.lost)
        found = set[str]()
        for hosts in ((), self.pods.pods, (self.pods.hosts.cluster.namespace,), (self.pods.hosts.n2,)):
            await self.forget(*hosts)
            found |= await asyncio.to_thread(self.node.lost)
        return found

    async def until_nothing_is_lost(self) -> None:
        """Waits until all of pods passes, as it does without a rule of others; a busy host may be late with it."""
        await eventually(partial(asyncio.to_thread, self.node.lost), lambda lost: not lost)

    async def forget(self, *hosts: NetworkNamespace) -> None:
        """No neighbour is known any more to these hosts; to all, if none is named."""
        for host in hosts or (*self.pods.pods, self.pods.hosts.cluster.namespace, self.pods.hosts.n2):
            await asyncio.to_thread(host.ip, "neigh", "flush", "all")

    async def restore(self) -> None:
        """The firewall is as it was."""
        await self.typed(
            f"printf 'flush ruleset\\n' | cat - {self.saved} | nft -f - && "
            f"iptables-legacy-restore < {self.saved}.legacy && "
            "if command -v ipset >/dev/null; then ipset destroy; fi; "
            "for r in 'table 99' 'table main priority 90'; do "
            "while ip rule del $r 2>/dev/null; do :; done; done; ip route flush table 99 2>/dev/null || true"
        )
        await self.forget()
        await self.pods.until_nothing_is_found("masq")

    async def settled(self, *, found: bool, is_broken: bool | None = None) -> pb.Status:
        """The status once there is a finding (one that is broken, or none), or was none for two looks."""
        pause, quiet = pauses(), 0
        async with asyncio.timeout(PATIENCE):
            while True:
                status = await self.pods.status("masq")
                assert isinstance(status, pb.Status)
                is_it = is_broken in (None, any(each.broken for each in status.findings))
                quiet = quiet + 1 if bool(status.findings) is found and is_it else 0
                if quiet > (0 if found else 3):
                    return status
                await asyncio.sleep(next(pause))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    async with watched("vxlan") as scene:
        yield scene


@asynccontextmanager
async def watched(backend: str) -> AsyncIterator[Scene]:
    make = NamespaceMaker()
    async with two_pods(Kind(backend, "ipv4", has_masq=True)) as pods:
        with ExitStack() as ending:
            ending.callback(make.close)
            node = WatchedNode(make, pods.hosts.cluster.namespace, pods.hosts.n2, pods.pods)
            ending.enter_context(node.listening())
            saved = str(pods.hosts.cluster.directory / "firewall")
            await pods.n1(f"nft -s list ruleset > {saved} && iptables-legacy-save > {saved}.legacy")
            yield Scene(pods, node, saved, has_tunnel=backend != "host-gw")


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
    await scene.until_nothing_is_lost()
    await _judged(scene, SHAPES.get(name) or ROWS[name])


async def test_a_firewall_between_nodes_on_one_link_is_judged_as_well() -> None:
    async with watched("host-gw") as scene:
        for shape in DIRECT.values():
            await scene.until_nothing_is_lost()
            await _judged(scene, shape)
        await _named(scene, "iptables-nft -t raw -A PREROUTING -i eth0 -s 10.5.0.0/16 -j DROP", *_OF_PEERS)


@pytest.mark.parametrize(("program", "name"), [(program, name) for program in PROGRAMS for name in PROGRAMS[program]])
async def test_a_program_takes_the_cures_for_its_firewall_and_keeps_them(
    scene: Scene, program: str, name: str, tmp_path: Path
) -> None:
    """The real one, with files of its own; they open nothing but what is ours."""
    await scene.until_nothing_is_lost()
    async with _running(scene, program, tmp_path):
        await _judged(scene, PROGRAMS[program][name], reload=RELOADS[program])


@asynccontextmanager
async def _running(scene: Scene, program: str, home: Path) -> AsyncIterator[None]:
    """n1 has this firewall while the block runs, as it is installed."""
    if shutil.which(program) is None:
        lacking(f"there is no {program}: apt-get install {program}, which also starts it where systemd runs")
    if os.stat("/etc").st_uid:  # noqa: PTH116 - 65534: root's files are nobody's in an ordinary user's namespace
        pytest.skip("an ordinary user has no files that these programs trust: run the tests as root")
    with ExitStack() as stack:
        files = stack.enter_context(OwnFiles(home, over=["/etc"], empty=["/run", "/var/lib", "/var/log"]))
        scene.inside = files.command("env", "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/run/bus")
        stack.callback(setattr, scene, "inside", ())
        if program == "firewalld":
            await scene.typed("find /etc/firewalld -type f ! -name firewalld.conf -delete")
            bus = "dbus-daemon", "--session", "--nofork", "--address=unix:path=/run/bus"
            for command, look, there in (
                (bus, "ls /run", "bus"),
                ((program, "--nofork", "--nopid"), "firewall-cmd --state || true", "running"),
            ):
                line = scene.pods.hosts.cluster.namespace.command(*scene.inside, *command)
                process = started(line, home / f"{command[0]}.log")
                stack.callback(process.wait)
                stack.callback(process.kill)
                await eventually(partial(scene.typed, look), contains(there))
        yield


async def _judged(scene: Scene, shape: Shape, *, reload: str = "") -> None:
    need_modules(*(module for part, module in NEEDS.items() if part in shape.act))
    is_worse = shape.is_of_arp or shape.is_by_chance
    found_before = await asyncio.to_thread(scene.node.reached) if is_worse else set()
    try:
        await scene.typed(shape.act)
        status = await scene.settled(found=bool(shape.named))
        lost = await scene.lost(forgotten=shape.is_of_arp)
        if shape.is_seen:
            status = await scene.settled(found=True, is_broken=bool(lost))
        reached = await asyncio.to_thread(scene.node.reached)
        before = await asyncio.to_thread(rules, scene)
        assert bool(lost) is (shape.is_broken or shape.is_policy), lost
        assert any(each.broken for each in status.findings) is (bool(lost) and not shape.is_policy), status
        assert status.ready is (shape.is_part or not any(each.broken for each in status.findings)), status.reasons
        if not shape.named:
            assert not status.findings
            return
        said = [f"{each.problem} {each.cause}" for each in status.findings]
        assert any(shape.named in each for each in said), said
        cures = [each.cure for each in status.findings if each.cure]
        assert not shape.cure or any(cure.startswith(shape.cure) for cure in cures), cures
        await _cured(scene, shape, cures)
        assert not await scene.lost(forgotten=shape.is_of_arp)
        ports = () if shape.is_by_chance else ("stranger: TCP", "stranger: UDP")
        again = {each for each in found_before if not each.startswith(ports)}
        opened = await asyncio.to_thread(scene.node.reached) - reached - again
        is_ban = any(cure.startswith(BANS) for cure in cures)
        is_open = not scene.has_tunnel or any("--new-policy=flannel" in cure for cure in cures)
        ours = OURS | FORGED if is_open else OURS
        assert {each for each in opened if not is_ban or not each.startswith("peer")} <= ours, opened
        if reload:
            await scene.typed(reload)
            await scene.pods.until_nothing_is_found("masq")
            assert not await asyncio.to_thread(scene.node.lost)
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


async def test_a_ban_that_ends_is_no_longer_found(scene: Scene) -> None:
    """Elements of a set go by themselves, and no rule changes."""
    try:
        await scene.typed(
            "nft 'table ip crowdsec { set bans { type ipv4_addr; flags timeout; "
            "elements = { 10.99.0.12 timeout 8s }; }; "
            "chain c { type filter hook input priority -10; ip saddr @bans drop; }; }'"
        )
        assert [each.broken for each in (await scene.settled(found=True)).findings] == [True]
        await scene.pods.until_nothing_is_found("masq")
        assert not await asyncio.to_thread(scene.node.lost)
    finally:
        await scene.restore()


async def test_a_sender_that_a_rule_remembers_is_found(scene: Scene) -> None:
    """Packets put elements into a set, and no rule changes."""
    try:
        await scene.typed(
            "nft 'table inet scan { set bad { type ipv4_addr; flags dynamic, timeout; timeout 10m; }; "
            "chain i { type filter hook input priority 0; ip saddr @bad drop; "
            "udp dport 8000-9000 add @bad { ip saddr }; }; }'"
        )
        await scene.settled(found=False)
        assert await asyncio.to_thread(scene.node.lost)
        (finding,) = (await scene.settled(found=True)).findings
        assert "ip saddr { 10.99.0.12 } drop" in finding.cause
        await scene.typed(finding.cure)
        await scene.pods.until_nothing_is_found("masq")
        assert not await asyncio.to_thread(scene.node.lost)
    finally:
        await scene.restore()


async def test_a_single_pod_that_nobody_may_reach_directly_is_reached_after_the_cure(scene: Scene) -> None:
    """As docker 28 does for its containers, before connection tracking."""
    try:
        await scene.typed("iptables-legacy -t raw -A PREROUTING -d 10.5.27.2 ! -i cni0 -j DROP")
        status = await scene.settled(found=True)
        assert any(each.broken for each in status.findings)
        (cure,) = {each.cure for each in status.findings if each.cure}
        opening = "iptables-legacy -t raw -I PREROUTING 1 -s 10.5.0.0/16 -d 10.5.27.2 -i flannel.1"
        assert cure.startswith(f"{opening} -m addrtype --dst-type UNICAST -j ACCEPT"), cure
        await scene.typed(cure)
        assert not await asyncio.to_thread(scene.node.lost)
        await scene.pods.until_nothing_is_found("masq")
    finally:
        await scene.restore()


_OF_PEERS = (
    "connection tracking has not seen these yet",
    {f"host: TCP to {PEERS_POD}"},
    "between this host and pods are dropped.",
)
STATELESS = {
    "before tracking": (
        "iptables-legacy -t raw -A PREROUTING -p udp -m multiport ! --dports 53,123,8472 "
        "-m addrtype --dst-type LOCAL -j DROP",
        "connection tracking has not seen these yet",
        {"outside: UDP"},
        "UDP packets between pods and the outside, and between pods and this host, are dropped.",
    ),
    "at the interface of pods": (
        'nft \'table netdev e { chain o { type filter hook egress device "cni0" priority 0; '
        "ip saddr != 10.0.0.0/8 tcp sport < 1024 drop; }; }'",
        "chains of netdev know no connections",
        {"outside: TCP"},
        "TCP packets of pods, to the outside or from there, are dropped.",
    ),
    "what a bridge gives to pods": (
        "nft 'table bridge f { chain o { type filter hook output priority 0; policy drop; ether type arp accept; "
        "ip protocol icmp accept; }; }'",
        "chains of bridge know no connections",
        {"outside: TCP", "outside: UDP"},
        "TCP and UDP packets of pods, to the outside or from there, are dropped.",
    ),
    "at the port of a pod": (
        "nft 'table bridge iso { chain fw { type filter hook input priority filter; "
        'iifname "veth0" ether type ip ip daddr 10.5.0.0/16 drop; }; }\'',
        "chains of bridge know no connections",
        {"host: TCP to 10.5.27.2"},
        "between this host and pods are dropped.",
    ),
    "a network with its interface in an ipset": (
        "ipset create ni hash:net,iface; ipset add ni 10.5.0.0/16,flannel.1; "
        "iptables-legacy -t raw -A PREROUTING -m set --match-set ni src,src -j DROP",
        *_OF_PEERS,
    ),
    "another pod's address at a port": (
        "nft 'table bridge f { chain c { type filter hook prerouting priority 0; "
        'iifname "veth0" ip saddr != 10.5.27.99 drop; }; }\'',
        "chains of bridge know no connections",
        {"host: TCP to 10.5.27.2"},
        "between this host and pods are dropped.",
    ),
    "another MAC at a port": (
        "nft 'table bridge f { chain i { type filter hook input priority 0; "
        'iifname "veth0" ether saddr != 02:00:00:00:00:99 drop; }; }\'',
        "chains of bridge know no connections",
        {"host: TCP to 10.5.27.2"},
        "between this host and pods are dropped.",
    ),
    "what a bridge takes of pods": (
        "nft 'table bridge f { chain i { type filter hook input priority 0; policy drop; ether type arp accept; "
        "ip protocol icmp accept; }; }'",
        "chains of bridge know no connections",
        {"host: TCP to 10.5.27.2"},
        "between this host and pods are dropped.",
    ),
    "the MAC address of another guest, at a port": (
        "ebtables -t nat -N I-veth0-mac; ebtables -t nat -A PREROUTING -p IPv4 -i veth0 -j I-veth0-mac; "
        "ebtables -t nat -A I-veth0-mac -s 52:54:00:00:00:01 -j RETURN; ebtables -t nat -A I-veth0-mac -j DROP",
        "chains of bridge know no connections",
        {"host: TCP to 10.5.27.2"},
        "between this host and pods are dropped.",
    ),
    "answers of pods, at a port": (
        "nft 'table bridge f { chain i { type filter hook input priority 0; "
        'iifname "veth0" ip saddr 10.5.27.0/24 tcp sport < 1024 drop; }; }\'',
        "chains of bridge know no connections",
        {"host: TCP to 10.5.27.2"},
        "between this host and pods are dropped.",
    ),
}
"""Places where no rule can ask for connections: what is typed, why, what is lost for good, and how that is said."""


@pytest.mark.parametrize("name", STATELESS)
async def test_answers_where_no_rule_can_tell_them_are_named_without_a_command(scene: Scene, name: str) -> None:
    """What else is dropped there between pods is cured."""
    await _named(scene, *STATELESS[name])


async def _named(scene: Scene, act: str, why: str, left: set[str], said: str) -> None:
    need_modules(*(module for part, module in NEEDS.items() if part in act))
    assert not await asyncio.to_thread(scene.node.lost)  # so the host knows its pods
    try:
        await scene.typed(act)
        status = await scene.settled(found=True)
        assert left <= await asyncio.to_thread(scene.node.lost)
        reached = await asyncio.to_thread(scene.node.reached)
        for cure in {each.cure for each in status.findings if each.cure}:
            await scene.typed(cure)
        rest = await eventually(
            lambda: scene.pods.status("masq"), lambda status: not any(each.cure for each in status.findings)
        )
        (finding,) = rest.findings
        assert finding.broken
        assert finding.problem.endswith(said)
        assert f"No rule there can tell answers from other packets, because {why}" in finding.cause
        assert await asyncio.to_thread(scene.node.lost) == left
        opened = await asyncio.to_thread(scene.node.reached) - reached
        assert opened <= FORGED, "no rule at the output of a bridge knows by which interface packets have come"
    finally:
        await scene.restore()


async def test_an_isolated_pod_is_explained_by_the_name_of_the_engine(scene: Scene) -> None:
    try:
        await scene.typed(SHAPES["a policy engine that isolates a pod"].act)
        code, text = await scene.pods.flannelette("explain", "10.5.53.2", "10.5.27.2", "-o", "json")
        document = json.loads(text)
        assert code == 1
        assert "A rule of kube-router drops them" in str(document)
    finally:
        await scene.restore()
