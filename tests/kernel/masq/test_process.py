"""The service as a process, beside a real lease service: its whole life on one host."""

import asyncio
import os
import signal

import pytest
from grpc_health.v1 import health_pb2

from flannelette.masq.v1 import masq_pb2 as pb
from tests.hosts.masq import Host, golden
from tests.services.masq import NETWORK, acquire, lease_service, masq_on, release
from tests.waiting import contains, equals, eventually

pytestmark = pytest.mark.usefixtures("legacy")


async def test_rules_come_with_network_and_lease_and_stay_when_these_are_lost(host: Host) -> None:
    async with masq_on(host, "--ip-masq") as masq:
        status = await masq.status()
        assert not status.ready
        assert any("the network is not known yet" in reason for reason in status.reasons)
        assert host.tables() == set()
        with lease_service(host) as leases:
            await eventually(host.save, equals(golden("ipv4-forward-only")))
            no_lease = "node n1 has no lease: there is nothing to masquerade yet; is its dataplane running?"
            await masq.until(ready=False, fits=lambda status: list(status.reasons) == [no_lease])
            await acquire(leases)
            status = await masq.until()
            assert host.save() == golden("ipv4")
            assert (status.rules, status.rules_present) == (10, 10)
            check = health_pb2.HealthCheckRequest(service="flannelette.masq.v1.MasqService")
            assert (await masq.health.Check(check)).status == health_pb2.HealthCheckResponse.SERVING
            await release(leases)
            await masq.until(ready=False, fits=lambda status: "the last rules stay" in status.reasons[0])
            assert host.save() == golden("ipv4")
            await acquire(leases)
            await masq.until()
        away = "the lease service is away, the rules stay as they are"
        await masq.until(ready=False, fits=lambda status: away in status.reasons[0])
        assert host.save() == golden("ipv4")
        assert await masq.end() == 0
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
            await eventually(masq.worker, lambda seen: seen not in (0, first))
            assert (await masq.status()).ready
            worker = masq.worker()
            assert await masq.end(signal.SIGKILL) == -signal.SIGKILL
            assert host.save() == golden("ipv4")
            await eventually(lambda: is_running(worker), equals(False))
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
                await masq.until(fits=lambda status: status.firewall == firewall)  # noqa: B023 - it is done in this turn
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
            await eventually(masq.log.read_text, contains("by=nft"))
