"""Our rules override no rule of another program: packets in each firewall, in both families."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, Family
from tests.hosts.four_hosts import FIREWALLS, IN, Lab, ports, source_seen
from tests.hosts.masq import CHAINS, DUAL_CHAINS, NO_CHAINS, Host, entered, put_right
from tests.hosts.namespaces import NamespaceMaker
from tests.kernel.masq.test_firewall_moves import running

ISOLATION = """
*filter
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-POD-FW-AAA - [0:0]
-I FORWARD 1 -m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD
-A KUBE-NWPLCY-DEFAULT -j MARK --set-xmark 0x10000/0x10000
-A KUBE-POD-FW-AAA -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-POD-FW-AAA -m conntrack --ctstate INVALID -j DROP
-A KUBE-POD-FW-AAA -m mark ! --mark 0x10000/0x10000 -j REJECT
-A KUBE-ROUTER-FORWARD -d {pod} -j KUBE-POD-FW-AAA
-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
COMMIT
"""
"""A policy engine that isolates a pod, as kube-router writes it."""

ENGINES_JUMP = "FORWARD -m comment --comment 'kube-router netpol - TEMCG2JMHZYE7H7T' -j KUBE-ROUTER-FORWARD"

CATCH_ALLS = {
    "a REJECT, as in Oracle's images": ["-A FORWARD -j REJECT"],
    "a DROP with a comment": ['-A FORWARD -m comment --comment "999 drop all" -j DROP'],
    "a REJECT for each protocol, then a DROP": [
        "-A FORWARD -p tcp -j REJECT --reject-with tcp-reset",
        "-A FORWARD -p udp -j REJECT",
        "-A FORWARD -j DROP",
    ],
    "a log and a DROP": ["-A FORWARD -m limit --limit 5/min -j LOG --log-prefix dropped", "-A FORWARD -j DROP"],
    "a chain that refuses, as NixOS has it": [
        "-N nixos-fw-refuse",
        "-A nixos-fw-refuse -j DROP",
        "-N nixos-fw-log-refuse",
        "-A nixos-fw-log-refuse -p tcp --syn -j LOG",
        "-A nixos-fw-log-refuse -m pkttype ! --pkt-type unicast -j nixos-fw-refuse",
        "-A nixos-fw-log-refuse -j nixos-fw-refuse",
        "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A FORWARD -j nixos-fw-log-refuse",
    ],
    "ufw, which rejects": [
        *(f"-N ufw-{name}-forward" for name in ("before", "after", "after-logging", "reject", "track")),
        *(f"-A FORWARD -j ufw-{name}-forward" for name in ("before", "after", "after-logging", "reject", "track")),
        "-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A ufw-after-logging-forward -m limit --limit 3/min -j LOG",
        "-A ufw-reject-forward -j REJECT",
        "-P FORWARD DROP",
    ],
    "firewalld with iptables": [
        "-N FORWARD_direct",
        "-N FORWARD_IN_ZONES",
        "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT",
        "-A FORWARD -i lo -j ACCEPT",
        "-A FORWARD -j FORWARD_direct",
        "-A FORWARD -j FORWARD_IN_ZONES",
        "-A FORWARD -m conntrack --ctstate INVALID -j DROP",
        "-A FORWARD -j REJECT",
    ],
    "a policy": ["-P FORWARD DROP"],
    "a log before a policy": ["-A FORWARD -j LOG", "-P FORWARD DROP"],
    "a return before a policy": ["-A FORWARD -j RETURN", "-P FORWARD DROP"],
    "docker 28": [
        "-P FORWARD DROP",
        *(f"-N {name}" for name in ("DOCKER", "DOCKER-USER", "DOCKER-FORWARD", "DOCKER-BRIDGE")),
        "-I FORWARD -j DOCKER-FORWARD",
        "-I FORWARD -j DOCKER-USER",
        "-A DOCKER ! -i docker0 -o docker0 -j DROP",
        "-A DOCKER-BRIDGE -o docker0 -j DOCKER",
        "-A DOCKER-FORWARD -j DOCKER-BRIDGE",
        "-A DOCKER-FORWARD -i docker0 -j ACCEPT",
    ],
}
"""What our rules are for: policies, also in the form of rules."""

OPERATORS = {
    "a curfew": ["-I FORWARD -m time --timestart 00:00 --timestop 23:59 -j DROP"],
    "an address": ["-A FORWARD -d {pod} -j DROP"],
    "an address before a catch-all": ["-A FORWARD -d {pod} -j DROP", "-A FORWARD -j REJECT"],
    "a port that is rejected before a catch-all": [
        "-A FORWARD -p udp --dport 1:65535 -j REJECT",
        "-A FORWARD -j REJECT",
    ],
    "a route rule of ufw": [
        "-N ufw-user-forward",
        "-N ufw-reject-forward",
        "-A FORWARD -j ufw-user-forward",
        "-A FORWARD -j ufw-reject-forward",
        "-A ufw-user-forward -d {pod} -j DROP",
        "-A ufw-reject-forward -j REJECT",
    ],
    "a chain that accepts some and drops the rest": [
        "-N site",
        "-A site -p tcp --dport 443 -j ACCEPT",
        "-A site -d {pod} -j DROP",
        "-A site -j DROP",
        "-A FORWARD -j site",
    ],
    "a lock-down before the rules of other programs": [
        "-N KUBE-FORWARD",
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
        "-A FORWARD -j KUBE-FORWARD",
        "-I FORWARD -j DROP",
    ],
}
"""What drops packets to the pod, and has to go on."""


@dataclass
class Scene:
    """A host with pods, the firewall of its kind, and the programs that other people use on it."""

    kind: str
    lab: Lab
    host: Host
    firewall: Any

    def iptables(self, *lines: str) -> None:
        """Runs each line in both families, with the address of the pod where it says `{pod}`."""
        for family in FAMILIES:
            for line in lines:
                words = line.format(pod=IN[family.version].pod)
                self.host.run("sh", "-c", f"{self.program(family)} -w {words}")

    def restore(self, text: str) -> None:
        """Adds these lines in both families."""
        for family in FAMILIES:
            program = f"{self.program(family)}-restore"
            self.host.run(program, "--noflush", stdin=text.format(pod=IN[family.version].pod))

    def program(self, family: Family) -> str:
        return f"ip{'6' if family.version == 6 else ''}tables-{'legacy' if self.kind == 'legacy' else 'nft'}"

    def rules(self, family: Family = IPV4) -> list[str]:
        """The targets of FORWARD, in order."""
        lines = self.host.run(self.program(family), "-S", "FORWARD").splitlines()
        return [line.split(" -j ")[1] for line in lines if " -j " in line]

    async def passes(self, family: Family) -> bool:
        """Whether a datagram from a pod of another node reaches the pod."""
        addresses, af = IN[family.version], socket.AddressFamily(family.af)
        port, loop = next(ports), asyncio.get_running_loop()
        with self.lab.pod.inside():
            receiving = socket.socket(af, socket.SOCK_DGRAM)
            receiving.bind(("", port))
        with self.lab.other.inside():
            sending = socket.socket(af, socket.SOCK_DGRAM)
        with sending, receiving:
            receiving.setblocking(False)
            for _ in range(3):
                sending.sendto(b"x", (addresses.pod, port))
            try:
                await asyncio.wait_for(loop.sock_recv(receiving, 16), 0.3)
            except TimeoutError:
                return False
        return True

    async def fates(self) -> set[bool]:
        """Whether packets pass, in both families."""
        return {await self.passes(family) for family in FAMILIES}

    async def again(self) -> list[str]:
        """What a firewall that starts anew would change, and how the chain looks then."""
        other = FIREWALLS[self.kind](self.host.lock.parent)
        commands = await put_right(other, DUAL_CHAINS)
        await other.close()
        return commands


@pytest.fixture(params=FIREWALLS)
async def scene(request: pytest.FixtureRequest, make_netns: NamespaceMaker, tmp_path: Path) -> AsyncIterator[Scene]:
    lab = Lab(make_netns)
    with entered(lab.host, tmp_path) as host:
        it = Scene(request.param, lab, host, FIREWALLS[request.param](tmp_path))
        yield it
        await it.firewall.close()


with_a_jump = pytest.mark.parametrize("scene", [kind for kind in FIREWALLS if kind != "nftables"], indirect=True)
"""In a table of our own, chains have no jump, and it accepts nothing that another table drops."""


async def test_an_isolated_pod_stays_isolated_at_start_restart_and_repair(scene: Scene) -> None:
    scene.restore(ISOLATION)
    assert await scene.fates() == {False}
    await put_right(scene.firewall, DUAL_CHAINS)
    assert await scene.fates() == {False}, "at the start"
    assert await scene.again() == []
    assert await scene.fates() == {False}, "at a restart"
    damage(scene)
    assert await put_right(scene.firewall, DUAL_CHAINS)
    assert await scene.fates() == {False}, "at a repair"
    scene.iptables("-F KUBE-ROUTER-FORWARD")
    assert await scene.fates() == {True}, "without isolation"


def damage(scene: Scene) -> None:
    """Deletes the accepts of masq, which it repairs."""
    if scene.kind == "nftables":
        scene.host.run("nft", "delete table ip flannelette; delete table ip6 flannelette")
    else:
        scene.iptables("-F FLANNEL-FWD", "-D FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD")


async def test_a_policy_engine_that_comes_later_or_inserts_itself_again_and_again_moves_nothing(scene: Scene) -> None:
    await put_right(scene.firewall, DUAL_CHAINS)
    scene.restore(ISOLATION)
    for _ in range(5):
        assert await put_right(scene.firewall, DUAL_CHAINS) == []
        assert await scene.fates() == {False}
        scene.iptables(f"-D {ENGINES_JUMP}", f"-I {ENGINES_JUMP}")


@pytest.mark.parametrize("name", OPERATORS)
async def test_a_rule_of_an_operator_that_drops_goes_on_dropping_whenever_it_comes(name: str, scene: Scene) -> None:
    if "time" in " ".join(OPERATORS[name]) and not scene.host.tries(scene.program(IPV4), *"-I INPUT -m time".split()):
        pytest.skip("this kernel has no match for the time")
    await put_right(scene.firewall, DUAL_CHAINS)
    assert await scene.fates() == {True}
    scene.iptables(*OPERATORS[name])
    await put_right(scene.firewall, DUAL_CHAINS)
    assert await scene.fates() == {False}, ("it comes later", scene.rules())
    assert await scene.again() == []
    await put_right(scene.firewall, NO_CHAINS)
    assert await scene.fates() == {False}
    await put_right(scene.firewall, DUAL_CHAINS)
    assert await scene.fates() == {False}, ("it was there before", scene.rules())
    assert await scene.again() == []


@with_a_jump
@pytest.mark.parametrize("name", CATCH_ALLS)
async def test_a_policy_in_whatever_form_lets_pods_through_whenever_it_comes(name: str, scene: Scene) -> None:
    await put_right(scene.firewall, DUAL_CHAINS)
    scene.iptables(*CATCH_ALLS[name])
    await put_right(scene.firewall, DUAL_CHAINS)
    assert await scene.fates() == {True}, ("it comes later", scene.rules())
    assert await scene.again() == []
    await put_right(scene.firewall, NO_CHAINS)
    before = scene.rules()
    assert "FLANNEL-FWD" not in before
    assert await scene.fates() == {False}
    await put_right(scene.firewall, DUAL_CHAINS)
    assert await scene.fates() == {True}, ("it was there before", scene.rules())
    assert [rule for rule in scene.rules() if rule != "FLANNEL-FWD"] == before
    assert await scene.again() == []
    await put_right(scene.firewall, NO_CHAINS)
    assert scene.rules() == before


@with_a_jump
async def test_the_jump_of_an_earlier_release_moves_from_the_first_place_in_one_transaction(scene: Scene) -> None:
    await put_right(scene.firewall, DUAL_CHAINS)
    scene.iptables("-A FORWARD -p tcp --dport 9 -j DROP", "-P FORWARD DROP")
    assert scene.rules()[0] == "FLANNEL-FWD"
    sent = asyncio.create_task(_stream(scene))
    await asyncio.sleep(0.2)
    commands = await put_right(scene.firewall, DUAL_CHAINS)
    assert len(commands) == 4, "a deletion and an addition in each family"
    assert await sent == 0
    assert scene.rules() == ["DROP", "FLANNEL-FWD"]
    assert await scene.again() == []


async def _stream(scene: Scene) -> int:
    """How many of 200 datagrams to the pod are lost."""
    port = next(ports)
    with scene.lab.pod.inside():
        receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiving.bind(("", port))
    with scene.lab.other.inside():
        sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sending, receiving:
        receiving.setblocking(False)
        for _ in range(200):
            sending.sendto(b"x", (IN[4].pod, port))
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        received = 0
        while True:
            try:
                receiving.recv(16)
            except BlockingIOError:
                return 200 - received
            received += 1


async def test_another_programs_source_address_comes_before_ours(scene: Scene) -> None:
    await put_right(scene.firewall, DUAL_CHAINS)
    for family, wanted in ((FAMILIES[0], "192.0.2.1"), (FAMILIES[1], "2001:db8::1")):
        addresses = IN[family.version]
        prefix = 32 if family is IPV4 else 128
        scene.lab.host.ip("addr", "add", f"{wanted}5/{prefix}", "dev", "eth")
        snat = f"-t nat -A POSTROUTING -s {addresses.subnet} -o eth -j SNAT --to-source {wanted}5"
        scene.host.run("sh", "-c", f"{scene.program(family)} -w {snat}")
    await put_right(scene.firewall, DUAL_CHAINS)
    for family, wanted in ((FAMILIES[0], "192.0.2.15"), (FAMILIES[1], "2001:db8::15")):
        scene.lab.outside.ip("route", "replace", wanted, "via", IN[family.version].host)
        assert await source_seen(scene.lab, family, "pod", "outside", next(ports)) == wanted
        assert await source_seen(scene.lab, family, "pod", "other_pod", next(ports)) == IN[family.version].pod


@with_a_jump
async def test_the_jump_that_a_flanneld_appends_is_left_where_it_is(scene: Scene) -> None:
    await put_right(scene.firewall, CHAINS)
    scene.iptables("-I FORWARD -p tcp --dport 9 -j DROP")
    jump = "FORWARD -m comment --comment 'flanneld forward' -j FLANNEL-FWD"
    scene.host.run("sh", "-c", f"{scene.program(IPV4)} -w -D {jump} && {scene.program(IPV4)} -w -A {jump}")
    assert await put_right(scene.firewall, CHAINS) == []
    assert scene.rules() == ["DROP", "FLANNEL-FWD"]


@pytest.mark.parametrize("firewall", ["auto", "nftables"])
async def test_a_policy_engine_that_inserts_itself_every_second_holds_beside_the_service(
    firewall: str, make_netns: NamespaceMaker, tmp_path: Path
) -> None:
    lab = Lab(make_netns)
    async with running(lab, tmp_path, firewall=firewall) as (host, masq):
        scene = Scene("nft", lab, host, FIREWALLS["nft"](tmp_path))
        scene.restore(ISOLATION)
        before = await masq.status()
        for _ in range(6):
            assert await scene.fates() == {False}
            scene.iptables(f"-D {ENGINES_JUMP}", f"-I {ENGINES_JUMP}")
        status = await masq.status()
        assert (status.repairs, status.rules_present) == (before.repairs, before.rules_present)


ASKS = [
    "-m limit --limit 5/min",
    "-m statistic --mode random --probability 0.5",
    "-m hashlimit --hashlimit-above 9/sec --hashlimit-name x",
    "-m connlimit --connlimit-above 9",
    "-m mark --mark 9",
    "-m conntrack --ctstate INVALID",
    "-m state --state NEW",
    "-m addrtype --dst-type LOCAL",
    "-m pkttype --pkt-type unicast",
    "-m time --timestart 00:00 --timestop 23:59",
    "-m length --length 0:9000",
    "-m quota --quota 9",
    "-m u32 --u32 6&0xFF=1",
    "-m physdev --physdev-in veth7",
    "-m set --match-set x src",
    "-m recent --name x --rcheck",
    "-m ttl --ttl-gt 1",
    "-m rpfilter",
    "-i pod",
    "! -o lo",
    "-s 10.0.0.0/8",
    "-p tcp",
    "-f",
]


@with_a_jump
async def test_a_last_rule_that_asks_for_anything_is_no_policy(scene: Scene) -> None:
    found = dict[str, list[str]]()
    for asks in ASKS:
        scene.host.run(scene.program(IPV4), "-w", "-F", "FORWARD")
        if scene.host.tries(scene.program(IPV4), "-w", "-A", "FORWARD", *asks.split(), "-j", "DROP"):
            await put_right(scene.firewall, CHAINS)
            found[asks] = scene.rules()
    assert found == {asks: ["DROP", "FLANNEL-FWD"] for asks in found}
    assert len(found) > 0.8 * len(ASKS), "this kernel and this iptables have nearly all of them"
