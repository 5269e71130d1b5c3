"""The reconciler, against a firewall in memory."""

import asyncio
import time
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Upserted
from flannelette.services.core.network import parse_network
from tests.examples.masq_firewall import ALL, LEASE, LEASE_KNOWN, MOVED, NETWORK_KNOWN, NO_CONTEXT, Running
from tests.waiting import equals, eventually


def repairs_counted(cause: str) -> float:
    return REGISTRY.get_sample_value("flannelette_masq_repairs_total", {"cause": cause, "by": ""}) or 0.0


async def test_rules_come_as_far_as_they_are_decided() -> None:
    async with Running() as it:
        assert it.names() == []
        assert it.health.reasons == [
            "the lease service is away, the rules stay as they are: the lease service has not answered yet",
            "the network is not known yet: the lease service has not sent it",
            "node n1 has no lease: there is nothing to masquerade yet; is its dataplane running?",
        ]
        await it.tell(NETWORK_KNOWN)
        assert it.names() == ["FLANNEL-FWD"]
        assert not it.health.ready
        await it.tell(LEASE_KNOWN)
        assert it.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.health.ready


async def test_it_is_never_ready_before_the_rules_are_there() -> None:
    it = Running()
    it.table.fold(NETWORK_KNOWN)
    it.table.fold(LEASE_KNOWN)
    it.reconciler.learn(it.table, away="")
    assert it.health.reasons == ["the rules of the new network or lease are not in place yet"]
    async with it:
        assert it.health.reasons == []
        it.table.fold(Step(changes=(Removed(LEASE.name), Upserted(MOVED)), synced=True))
        it.reconciler.learn(it.table, away="")
        assert it.health.reasons == ["the rules of the new network or lease are not in place yet"]
        await it.settle()
        assert it.health.ready


async def test_without_masquerade_no_lease_is_needed() -> None:
    async with Running(replace(ALL, masquerade=False)) as it:
        await it.tell(NETWORK_KNOWN)
        assert it.names() == ["FLANNEL-FWD"]
        assert it.health.ready


async def test_a_new_subnet_replaces_the_rules_and_is_no_repair() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        await it.tell(Step(changes=(Removed(LEASE.name), Upserted(MOVED)), synced=True))
        assert "-A FLANNEL-POSTRTG -s 10.5.9.0/24 -d 10.5.0.0/16" in it.firewall.dump()
        assert "10.5.27.0" not in it.firewall.dump()
        assert it.reconciler.repairs == 0


async def test_a_lost_lease_leaves_the_rules_and_is_said() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN, Step(changes=(Removed(LEASE.name),), synced=True))
        assert it.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.health.reasons == ["node n1 has no lease: the last rules stay; is its dataplane running?"]


async def test_a_lost_lease_service_leaves_the_rules_and_is_said() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.reconciler.learn(it.table, away="connection refused")
        await it.settle()
        assert it.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.health.reasons == ["the lease service is away, the rules stay as they are: connection refused"]
        assert not (await it.status()).lease_service_connected


async def test_a_lost_store_leaves_the_rules_and_is_said_until_it_is_back() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN, Step(store=StoreStatus("etcd", connected=False, error="no leader")))
        assert it.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.health.reasons == ["the store is away, the rules stay as they are: no leader"]
        await it.tell(Step(store=StoreStatus("etcd", connected=True)))
        assert it.health.ready


async def test_a_foreign_change_is_put_right_and_counted_by_cause() -> None:
    before = repairs_counted("chain missing")
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.restore("")
        await it.settle()
        assert it.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.reconciler.repairs == 2
        assert repairs_counted("chain missing") == before + 2
        assert it.health.ready


async def test_a_writer_who_does_not_give_in_takes_readiness_away() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.undoes = ""
        it.firewall.restore("")
        await it.settle()
        assert "IPv4 FLANNEL-POSTRTG and IPv4 FLANNEL-FWD do not stay as they should be" in it.health.reasons[0]
        it.firewall.undoes = None
        await it.settle()
        assert it.health.ready


async def test_a_firewall_that_fails_is_said_and_tried_again() -> None:
    async with Running() as it:
        it.firewall.failure = "IPv4 table nat: Permission denied"
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        assert it.health.reasons == ["IPv4 table nat: Permission denied"]
        listed = await it.servicer.ListRules(pb.ListRulesRequest(), NO_CONTEXT)
        assert list(listed.rules) == []
        with pytest.raises(Unavailable, match="Permission denied"):
            await it.servicer.ResyncRules(pb.ResyncRulesRequest(), NO_CONTEXT)
        it.firewall.failure = ""
        it.firewall.restore("")
        await it.settle()
        assert it.health.ready


FOREIGN = "-A FORWARD -j KUBE-FORWARD"


async def test_a_jump_that_is_moved_again_and_again_is_moved_back_three_times_a_minute() -> None:
    async with Running() as it:
        it.now = 0.0
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        for moved in range(3):
            assert it.health.ready
            it.firewall.append("filter", FOREIGN)
            await it.settle()
            assert it.firewall.dump().splitlines()[moved + 3].endswith("-j FLANNEL-FWD")
        it.firewall.append("filter", FOREIGN)
        await it.settle()
        assert not it.health.ready
        assert it.reconciler.repairs == 3
        assert it.health.reasons[0].endswith(f"stays on the wrong side of that rule: {FOREIGN}")
        it.now = 61.0
        it.firewall.insert("nat", "-A POSTROUTING -j OTHER")
        await it.settle()
        assert it.health.ready


async def test_a_jump_that_is_left_behind_does_not_keep_its_chain_from_being_repaired() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        for _ in range(4):
            it.firewall.append("filter", FOREIGN)
            await it.settle()
        it.firewall.restore(f"*filter\n{FOREIGN}\nCOMMIT\n")
        await it.settle()
        assert it.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]


async def test_a_check_where_nothing_has_changed_reads_no_rules_and_is_told_as_a_check() -> None:
    async with Running(resync_seconds=0.001) as it, asyncio.timeout(5):
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        reads, it.now = it.firewall.reads, 2000.0
        await eventually(lambda: it.reconciler.last_check_time, equals(2000.0))
        assert it.firewall.reads == reads
        it.firewall.insert("nat", "-A POSTROUTING -j OTHER")
        while it.firewall.reads == reads:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)


async def test_what_could_not_be_put_right_is_tried_again_though_nobody_has_changed_anything() -> None:
    async with Running(resync_seconds=0.001) as it, asyncio.timeout(5):
        it.firewall.failure = "the tables are locked"
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.failure = ""
        while not it.health.ready:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)


async def test_a_network_that_asks_for_nftables_moves_the_rules_there() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        nft = parse_network('{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}')
        await it.tell(replace(NETWORK_KNOWN, network=nft), LEASE_KNOWN)
        assert it.firewall.dump().startswith("table ip flannelette {")
        assert it.names() == []


async def test_a_caller_who_leaves_a_teardown_does_not_interrupt_it() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        caller = asyncio.create_task(it.reconciler.teardown(dry_run=False))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        await it.reconciler.close()
        assert it.names() == []
        assert not any(rule.present for state in it.reconciler.states for rule in state.all_rules)


async def test_foreign_rules_that_change_all_the_time_are_judged_a_part_of_the_time_and_the_last_change_too() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            end = time.thread_time() + 0.002
            while time.thread_time() < end:
                pass

        it.look_with(look)
        for number in range(50):
            it.firewall.append("nat", f"-A POSTROUTING -s 192.0.2.{number}")
            await it.settle()
            await asyncio.sleep(0.002)
        assert 1 <= looks < 25
        it.be_host(not_forwarding=frozenset({4}))
        it.firewall.append("nat", "-A POSTROUTING -s 198.51.100.1")
        async with asyncio.timeout(5):
            while it.health.ready:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
