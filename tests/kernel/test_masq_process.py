"""The service as a process, beside a real lease service: its whole life on one host."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Final

import grpc.aio
import pytest
from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.masq.v1 import masq_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.certificates import Certificates, flags
from tests.kernel.masq_host import Host, entered, golden
from tests.lease_service import ServiceProcess, eventually
from tests.namespaces import NetworkNamespace
from tests.patience import PATIENCE

NETWORK: Final = (
    '{"Network":"10.5.0.0/16","SubnetMin":"10.5.27.0","SubnetMax":"10.5.27.0","Backend":{"Type":"host-gw"}}'
)


@pytest.fixture
def host(netns: NetworkNamespace, tmp_path: Path) -> Iterator[Host]:
    with entered(netns, tmp_path) as it:
        it.use_legacy()
        yield it


class Masq:
    """`flannelette-masq` on a host, and its calls."""

    def __init__(self, host: Host, *arguments: str) -> None:
        self.directory = host.lock.parent
        self.log = self.directory / "masq.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "services.masq.main",
                    "--node=n1",
                    f"--socket-dir={self.directory}",
                    f"--state-dir={self.directory}/state",
                    *arguments,
                ],
                env=host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=log,
                stderr=log,
            )
        self._channel = grpc.aio.insecure_channel(
            f"unix:{self.directory}/masq.sock", options=[("grpc.max_reconnect_backoff_ms", 100)]
        )
        self.stub = masq_pb2_grpc.MasqServiceStub(self._channel)
        self.health = health_pb2_grpc.HealthStub(self._channel)

    async def status(self) -> pb.Status:
        return (await self.stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=PATIENCE)).status

    async def until(self, *, ready: bool = True, repairs: int = 0) -> pb.Status:
        """The status, as soon as it is like that."""
        async with asyncio.timeout(PATIENCE):
            while (status := await self.status()).ready is not ready or status.repairs < repairs:  # noqa: ASYNC110 - another process decides
                await asyncio.sleep(0.02)
        return status

    def worker(self) -> int:
        """Its worker's process id; 0 while it has none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code, negative for a signal."""
        await self._channel.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@asynccontextmanager
async def masq_on(host: Host, *arguments: str) -> AsyncIterator[Masq]:
    masq = Masq(host, *arguments)
    try:
        yield masq
    finally:
        await masq.end(signal.SIGKILL)


def lease_service(host: Host, *more: str) -> ServiceProcess:
    directory = host.lock.parent
    (directory / "net-conf.json").write_text(NETWORK)
    store = (f"--net-config-path={directory}/net-conf.json", f"--store-file={directory}/leases.db")
    return ServiceProcess(directory, *store, *more)


async def acquire(service: ServiceProcess) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        subnet = lease_pb2.Subnet(public_address="192.0.2.1")
        request = lease_pb2.AcquireLeaseRequest(node="n1", subnets=[subnet], backend_type="host-gw")
        await stub.AcquireLease(request, wait_for_ready=True, timeout=PATIENCE)


async def release(service: ServiceProcess) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        await stub.ReleaseLease(lease_pb2.ReleaseLeaseRequest(node="n1", name="10.5.27.0-24"), timeout=PATIENCE)


async def test_rules_come_with_network_and_lease_and_stay_when_these_are_lost(host: Host) -> None:
    async with masq_on(host, "--ip-masq") as masq:
        status = await masq.status()
        assert not status.ready
        assert any("the network is not known yet" in reason for reason in status.reasons)
        assert host.tables() == set()
        with lease_service(host) as leases:
            await eventually(lambda: host.save() == golden("ipv4-forward-only"))
            status = await masq.until(ready=False)
            assert list(status.reasons) == [
                "node n1 has no lease: there is nothing to masquerade yet; is its dataplane running?"
            ]
            await acquire(leases)
            status = await masq.until()
            assert host.save() == golden("ipv4")
            assert (status.rules, status.rules_present) == (10, 10)
            check = health_pb2.HealthCheckRequest(service="flannelette.masq.v1.MasqService")
            assert (await masq.health.Check(check)).status == health_pb2.HealthCheckResponse.SERVING
            await release(leases)
            status = await masq.until(ready=False)
            assert "its last rules stay" in status.reasons[0]
            assert host.save() == golden("ipv4")
            await acquire(leases)
            await masq.until()
        status = await masq.until(ready=False)
        assert "the lease service is away, the rules stay as they are" in status.reasons[0]
        assert host.save() == golden("ipv4")
        assert await masq.end() == 0
    assert host.save() == golden("ipv4")


async def test_over_tls_a_certificate_that_is_not_trusted_is_the_reason_until_it_is(host: Host) -> None:
    ours, others = (Certificates(host.lock.parent / name) for name in ("ours", "others"))
    served, address = ours.server(), "127.0.0.1:7070"
    mine = others.client("h1-masq")
    with lease_service(host, f"--listen=unix:{host.lock.parent}/lease.sock,{address}", *flags(served)) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", f"--lease-address={address}", *flags(mine)) as masq:
            async with asyncio.timeout(PATIENCE):
                while "its certificate is signed by nobody in" not in str((await masq.status()).reasons):  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(0.02)
            for new, old in zip(astuple(ours.client("h1-masq")), astuple(mine), strict=True):
                new.replace(old)
            await masq.until()
        assert host.save() == golden("ipv4")


async def test_a_foreign_change_is_back_in_about_a_second(host: Host) -> None:
    with lease_service(host) as leases:
        async with masq_on(host, "--ip-masq", "--iptables-resync=60") as masq:
            await acquire(leases)
            await masq.until()
            await asyncio.sleep(1.5)
            host.iptables("-t nat -F", "-I FORWARD -j DROP")
            await masq.until(repairs=2)
            ours = [line for line in host.save() if "FLANNEL" in line]
            assert ours == [line for line in golden("ipv4") if "FLANNEL" in line]
            assert host.rules("FORWARD", "filter")[0].endswith("FLANNEL-FWD")


async def test_killing_the_service_or_its_worker_changes_no_rule(host: Host) -> None:
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", "--iptables-resync=1") as masq:
            await masq.until()
            first = masq.worker()
            os.kill(first, signal.SIGKILL)
            await masq.stub.ListRules(pb.ListRulesRequest())  # an idle masq needs no worker
            await eventually(lambda: masq.worker() not in (0, first))
            assert (await masq.status()).ready
            worker = masq.worker()
            assert await masq.end(signal.SIGKILL) == -signal.SIGKILL
            assert host.save() == golden("ipv4")
            await eventually(lambda: not is_running(worker))
        async with masq_on(host, "--ip-masq") as masq:
            status = await masq.until()
            assert status.repairs == 0
            assert "rules put in place" not in masq.log.read_text().partition("the rules were in place already")[2]
        assert host.save() == golden("ipv4")


async def test_teardown_removes_the_rules_and_keeps_them_away_until_a_resync(host: Host) -> None:
    host.iptables("-A FORWARD -s 172.17.0.0/16 -j ACCEPT")
    before = host.save()
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", "--iptables-resync=1") as masq:
            await masq.until()
            planned = await masq.stub.TeardownRules(pb.TeardownRulesRequest(dry_run=True))
            done = await masq.stub.TeardownRules(pb.TeardownRulesRequest())
            assert planned.commands == done.commands
            assert host.save() == before
            await asyncio.sleep(1.5)
            assert host.save() == before
            assert not (await masq.status()).ready
            await masq.stub.ResyncRules(pb.ResyncRulesRequest())
            await masq.until()
            assert len(host.save()) > len(before)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["--iptables-forward-rules=false", "--ip-masq"], ["nat"]),
        (["--ip-masq=false"], ["filter"]),
        (["--iptables-forward-rules=false"], []),
    ],
)
async def test_what_is_switched_off_is_not_kept_and_what_is_left_of_it_goes(
    host: Host, arguments: list[str], kept: list[str]
) -> None:
    host.restore("\n".join(golden("flanneld-v0.20")) + "\n")
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, *arguments) as masq:
            await masq.until()
            assert [line[1:] for line in host.save() if line.startswith("*")] == kept


async def test_a_second_masq_in_the_namespace_waits_for_the_first_one_to_go_and_then_says_what_to_do(
    host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    places = tmp_path_factory.mktemp("second")
    words = [sys.executable, "-m", "services.masq.main", f"--socket-dir={places}", f"--state-dir={places}"]
    environment = host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq") as first:
            await first.until()
            done = await asyncio.to_thread(
                subprocess.run,
                host.netns.command(*words),
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (
                1,
                "flannelette-masq: another masq runs in this network namespace: stop it first, two would undo each "
                "other's rules; one for another network needs a network namespace of its own\n",
            )
            assert (await first.status()).ready
            second = Masq(host, "--ip-masq", f"--socket-dir={places}")
            await asyncio.sleep(1)
            assert second.process.poll() is None, "the first one may be about to end"
        async with grpc.aio.insecure_channel(f"unix:{places}/masq.sock") as channel:
            stub = masq_pb2_grpc.MasqServiceStub(channel)
            await stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=15)
        await second.end(signal.SIGKILL)


@pytest.mark.parametrize(
    ("around", "arguments", "code", "line"),
    [
        (["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw"], ["--ip-masq"], 1, "CAP_NET_RAW"),
        ([], ["--ip-masq=perhaps"], 2, "--ip-masq is 'perhaps': use true or false"),
        ([], ["--iptables-resync=0"], 2, "--iptables-resync is 0: use at least 1 second"),
    ],
)
def test_what_cannot_work_ends_with_one_clear_line(
    host: Host, around: list[str], arguments: list[str], code: int, line: str
) -> None:
    places = (f"--socket-dir={host.lock.parent}", f"--state-dir={host.lock.parent}/state")
    done = subprocess.run(
        [*around, sys.executable, "-m", "services.masq.main", *places, *arguments],
        env=host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("flannelette-masq: ")
    assert line in done.stderr


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_network_that_asks_for_nftables_moves_the_rules_there_and_back(host: Host) -> None:
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq") as masq:
            before = (await masq.until()).firewall
            config = host.lock.parent / "net-conf.json"
            for asked, firewall in (("true", "nftables"), ("false", before)):
                config.write_text(NETWORK.replace('"Network"', f'"EnableNFTables":{asked},"Network"'))
                async with asyncio.timeout(PATIENCE):
                    while (await masq.until()).firewall != firewall:  # noqa: ASYNC110 - another process decides
                        await asyncio.sleep(0.05)
                await masq.until()
                assert ("table ip flannelette" in host.run("nft", "list", "ruleset")) is (firewall == "nftables")
                assert bool(host.save()) is (firewall != "nftables")


async def test_in_nftables_a_foreign_change_is_back_at_once_and_its_author_is_told(host: Host) -> None:
    with lease_service(host) as leases:
        await acquire(leases)
        async with masq_on(host, "--ip-masq", "--firewall=nftables") as masq:
            await masq.until()
            assert masq.worker() == 0
            rules = host.run("nft", "--stateless", "list", "ruleset")
            for repairs, command in enumerate(("nft flush ruleset", "nft delete table ip flannelette"), start=1):
                host.run("sh", "-c", command)
                assert (await masq.until(repairs=2 * repairs)).ready
                assert host.run("nft", "--stateless", "list", "ruleset") == rules
            assert "by=nft" in masq.log.read_text()
