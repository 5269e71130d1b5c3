"""Our rules stay where they work, follow signs of iptables only, and dead forwarding is said.

Regression tests of hole 10.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.family import FAMILIES, IPV4
from tests.ctl.process import run
from tests.hosts.four_hosts import IN, Lab, ports, source_seen
from tests.hosts.masq import (
    DUAL_CHAINS,
    LEGACY,
    Host,
    HostsFirewall,
    dropping_forwarding,
    entered,
    put_right,
    used_firewalls,
)
from tests.hosts.namespaces import NamespaceMaker
from tests.services.masq import Masq, acquire, lease_service, masq_on
from tests.waiting import eventually

FOREIGN = "iptables-nft -A FORWARD -p tcp --dport 9999 -j ACCEPT"
NATIVE = """
table inet admin {
  chain input { type filter hook input priority 0; tcp dport 22 accept; }
}
table ip filter {
  chain input { type filter hook input priority 0; tcp dport 22 accept; }
}
"""


class Stream:
    """Datagrams from the pod of another node to one of this, a hundred a second."""

    def __init__(self, lab: Lab) -> None:
        self.sent = 0
        self.received = 0
        port = next(ports)
        with lab.pod.inside():
            self._receiving = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._receiving.bind(("", port))
        self._receiving.setblocking(False)
        with lab.other.inside():
            self._sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._to = (IN[4].pod, port)

    async def run(self, seconds: float) -> int:
        """How many are lost."""
        before = self.sent - self.received
        for _ in range(int(seconds * 100)):
            self._sending.sendto(b"x", self._to)
            self.sent += 1
            await asyncio.sleep(0.01)
            self._drain()
        await asyncio.sleep(0.1)
        self._drain()
        return self.sent - self.received - before

    def close(self) -> None:
        self._receiving.close()
        self._sending.close()

    def _drain(self) -> None:
        while True:
            try:
                self._receiving.recv(16)
            except BlockingIOError:
                return
            self.received += 1


@asynccontextmanager
async def running(
    lab: Lab, directory: Path, *before: str, firewall: str = "auto"
) -> AsyncIterator[tuple[Host, Masq]]:
    """masq with its rules in place, on a host where these commands were run before."""
    with entered(lab.host, directory) as host:
        for command in before:
            host.run("sh", "-c", command)
        with lease_service(host) as leases:
            async with masq_on(host, "--ip-masq", f"--firewall={firewall}", "--iptables-resync=1") as masq:
                await acquire(leases)
                await eventually(masq.status, lambda status: status.rules_present >= 10)
                yield host, masq


@pytest.fixture
def lab(make_netns: NamespaceMaker) -> Lab:
    return Lab(make_netns)


async def checked(masq: Masq) -> pb.Status:
    """The status after a check that began later than now."""
    begin = (await masq.stub.ResyncRules(pb.ResyncRulesRequest(dry_run=True)), await masq.status())[1]
    return await eventually(masq.status, lambda status: status.last_check_time != begin.last_check_time)


async def test_a_foreign_rule_of_iptables_nft_does_not_move_ours_to_where_packets_are_dropped(
    lab: Lab, tmp_path: Path
) -> None:
    stream = Stream(lab)
    async with running(lab, tmp_path, "iptables-legacy -P FORWARD DROP") as (host, masq):
        assert (await masq.until()).firewall == LEGACY
        assert await stream.run(0.5) == 0
        host.run("sh", "-c", FOREIGN)
        lost = await stream.run(3)
        status = await checked(masq)
        assert lost == 0, f"{lost} of 300 lost, the rules are in {status.firewall}"
        assert (status.ready, status.firewall) == (True, LEGACY)
        host.run("sh", "-c", FOREIGN.replace("-A", "-D"))
        assert await stream.run(1) == 0
        assert (await checked(masq)).firewall == LEGACY
    stream.close()


async def test_tables_of_nftables_that_are_not_of_iptables_are_no_sign(lab: Lab, tmp_path: Path) -> None:
    async with running(lab, tmp_path, "iptables-legacy -A INPUT -j ACCEPT") as (host, masq):
        assert (await masq.until()).firewall == LEGACY
        host.run("nft", "-f", "-", stdin=NATIVE)
        status = await checked(masq)
        assert (status.firewall, status.ready) == (LEGACY, True)
        assert status.firewall_reason == "there are rules in the legacy tables, and iptables-nft has none"
        assert used_firewalls() == {LEGACY}


async def test_the_rules_come_back_when_the_sign_goes(lab: Lab, tmp_path: Path) -> None:
    stream = Stream(lab)
    async with running(lab, tmp_path, "iptables-nft -t mangle -N KUBE-IPTABLES-HINT") as (host, masq):
        host.run("sh", "-c", "iptables-legacy -A INPUT -j ACCEPT; iptables-nft -t mangle -X KUBE-IPTABLES-HINT")
        await _until_in(masq, LEGACY)
        host.run("sh", "-c", "iptables-nft -t mangle -N KUBE-IPTABLES-HINT")
        await _until_in(masq, "iptables-nft")
        host.run("sh", "-c", "iptables-nft -t mangle -X KUBE-IPTABLES-HINT")
        await _until_in(masq, LEGACY)
        assert await stream.run(0.5) == 0
        assert used_firewalls() == {LEGACY}
    stream.close()


async def _until_in(masq: Masq, kind: str) -> None:
    async def seen() -> tuple[pb.Status, set[str]]:
        return await masq.status(), used_firewalls()

    await eventually(seen, lambda both: both[0].firewall == kind and both[1] == {kind})


async def test_dead_forwarding_is_not_ready_and_said_with_its_cure(lab: Lab, tmp_path: Path) -> None:
    stream = Stream(lab)
    async with running(lab, tmp_path, "iptables-legacy -P FORWARD DROP", firewall="nftables") as (host, masq):
        problem = (
            "forwarding is broken: Packets of pods are dropped. The policy of chain FORWARD of table filter "
            "(iptables-legacy) is DROP, and no rule there accepts them"
        )
        status = await masq.until(ready=False, fits=lambda status: list(status.reasons) == [problem])
        assert status.rules_present == status.rules == 10
        assert await stream.run(0.5) == 50
        check = health_pb2.HealthCheckRequest(service="flannelette.masq.v1.MasqService")
        assert (await masq.health.Check(check)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        seen = await run(masq.directory, "status")
        assert seen.code == 1
        assert seen.out.splitlines()[0].startswith("n1 is not healthy: forwarding is broken: Packets of pods are")
        assert f"! {problem}" in seen.out
        doctor = await run(masq.directory, "doctor", "masq", "-o", "json")
        assert doctor.code == 1
        (problem,) = [each for each in doctor.json["problems"] if "policy" in each["problem"]]
        before = host.run("iptables-legacy", "-S", "FORWARD").splitlines()
        host.run("sh", "-c", problem["cure"])
        assert list((await masq.until()).reasons) == []
        assert await stream.run(0.5) == 0
        assert host.run("iptables-legacy", "-S", "FORWARD").splitlines()[: len(before)] == before, "the policy stays"
    stream.close()


DOCKER = """*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
"""


async def test_what_docker_leaves_in_the_legacy_tables_is_dead_forwarding(host: Host) -> None:
    host.restore(DOCKER)
    (found,) = dropping_forwarding("nftables")
    assert found.is_broken
    start = "iptables-legacy -t filter -A FORWARD"
    assert found.cure.startswith(
        f"{start} -s 10.5.0.0/16 -d 10.5.27.0/24 -i flannel.1 -j ACCEPT  # docker sets this policy"
    )
    assert dropping_forwarding(LEGACY) == []


async def test_a_rule_of_another_program_that_drops_is_dead_forwarding_too(lab: Lab, tmp_path: Path) -> None:
    async with running(lab, tmp_path) as (host, masq):
        await masq.until()
        host.run("nft", "add table inet other; add chain inet other c { type filter hook forward priority 5; }")
        host.run("nft", "add rule inet other c ip daddr 10.5.0.0/16 counter drop")
        dropped = "`ip daddr 10.5.0.0/16 drop`, chain c of table inet other (nft)"
        status = await masq.until(ready=False, fits=lambda status: dropped in status.reasons[0])
        (finding,) = [each for each in status.findings if "nft insert" in each.cure]
        host.run("sh", "-c", finding.cure)
        await masq.until()
        await source_seen(lab, IPV4, "other_pod", "pod", next(ports))


@pytest.mark.parametrize("accepts", ["-s 10.5.0.0/16", "-m conntrack --ctstate NEW,ESTABLISHED"])
async def test_a_policy_that_drops_beside_a_rule_that_accepts_the_overlay_is_none(
    accepts: str, lab: Lab, tmp_path: Path
) -> None:
    commands = (f"iptables-legacy -A FORWARD {accepts} -j ACCEPT", "iptables-legacy -P FORWARD DROP")
    async with running(lab, tmp_path, *commands, firewall="nftables") as (_, masq):
        status = await masq.until()
        assert not any("policy" in f"{finding.problem} {finding.cause}" for finding in status.findings)
        await source_seen(lab, IPV4, "other_pod", "pod", next(ports))


async def test_a_configuration_that_asks_for_nftables_waits_until_packets_pass_there(
    lab: Lab, tmp_path: Path
) -> None:
    with entered(lab.host, tmp_path) as host:
        for program in ("iptables-legacy", "ip6tables-legacy"):
            host.run(program, "-P", "FORWARD", "DROP")
        firewall = HostsFirewall("auto", host.lock)
        await put_right(firewall, DUAL_CHAINS)
        firewall.ask(True)
        assert await put_right(firewall, DUAL_CHAINS) == []
        assert firewall.name == LEGACY
        assert firewall.reason == (
            "the network configuration has EnableNFTables, but there the overlay's packets would be dropped, so the "
            "rules stay in the legacy tables"
        )
        for family in FAMILIES:
            await source_seen(lab, family, "other_pod", "pod", next(ports))
        for program in ("iptables-legacy", "ip6tables-legacy"):
            host.run(program, "-P", "FORWARD", "ACCEPT")
        await put_right(firewall, DUAL_CHAINS)
        assert firewall.name == "nftables"
        for family in FAMILIES:
            await source_seen(lab, family, "other_pod", "pod", next(ports))
        await firewall.close()
