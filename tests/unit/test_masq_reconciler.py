"""The reconciler, against a firewall in memory."""

import asyncio
import errno
from dataclasses import replace

import pytest
from flannelette.masq.v1 import masq_pb2 as pb
from prometheus_client import REGISTRY

from services.core.errors import Unavailable
from services.core.network import parse_network
from services.core.table import Removed, Step, StoreStatus, Upserted
from services.masq.reconciler import Reconciler
from tests.masq_fakes import ALL, LEASE, LEASE_KNOWN, MOVED, NETWORK_KNOWN, NO_CONTEXT, Running


def repairs_counted(cause: str) -> float:
    return REGISTRY.get_sample_value("flannelette_masq_repairs_total", {"cause": cause, "by": ""}) or 0.0


async def test_rules_come_as_far_as_they_are_decided() -> None:
    async with Running() as it:
        assert it.firewall.names() == []
        assert it.health.reasons == [
            "the lease service is away, the rules stay as they are: the lease service has not answered yet",
            "the network is not known yet: the lease service has not told it",
            "node n1 has no lease: there is nothing to masquerade yet; is its dataplane running?",
        ]
        await it.tell(NETWORK_KNOWN)
        assert it.firewall.names() == ["FLANNEL-FWD"]
        assert not it.health.ready
        await it.tell(LEASE_KNOWN)
        assert it.firewall.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
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
        assert it.firewall.names() == ["FLANNEL-FWD"]
        assert it.health.ready


async def test_a_new_subnet_replaces_the_rules_and_is_no_repair() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        await it.tell(Step(changes=(Removed(LEASE.name), Upserted(MOVED)), synced=True))
        rules = it.firewall.chains["IPv4", "FLANNEL-POSTRTG"].rules
        assert rules[1].source is not None
        assert str(rules[1].source.cidr) == "10.5.9.0/24"
        assert it.reconciler.repairs == 0


async def test_a_lost_lease_leaves_the_rules_and_is_said() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN, Step(changes=(Removed(LEASE.name),), synced=True))
        assert it.firewall.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.health.reasons == ["node n1 has no lease: its last rules stay; is its dataplane running?"]


async def test_a_lost_lease_service_leaves_the_rules_and_is_said() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.reconciler.learn(it.table, away="connection refused")
        await it.settle()
        assert it.firewall.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.health.reasons == ["the lease service is away, the rules stay as they are: connection refused"]
        assert not (await it.status()).lease_service_connected


async def test_a_lost_store_leaves_the_rules_and_is_said_until_it_is_back() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN, Step(store=StoreStatus("etcd", connected=False, error="no leader")))
        assert it.firewall.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.health.reasons == ["the store is away, the rules stay as they are: no leader"]
        await it.tell(Step(store=StoreStatus("etcd", connected=True)))
        assert it.health.ready


async def test_a_foreign_change_is_put_right_and_counted_by_cause() -> None:
    before = repairs_counted("chain missing")
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.flush()
        await it.settle()
        assert it.firewall.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]
        assert it.reconciler.repairs == 2
        assert repairs_counted("chain missing") == before + 2
        assert it.health.ready


async def test_a_writer_who_does_not_give_in_takes_readiness_away() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.stubborn = True
        it.firewall.flush()
        await it.settle()
        assert "IPv4 FLANNEL-POSTRTG and IPv4 FLANNEL-FWD do not stay as they should be" in it.health.reasons[0]
        it.firewall.stubborn = False
        it.firewall.flush()
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
        it.firewall.touched.set()
        await it.settle()
        assert it.health.ready


async def test_a_jump_that_is_moved_again_and_again_is_moved_back_three_times_a_minute() -> None:
    async with Running() as it:
        now = 0.0
        it.reconciler._clock = lambda: now
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.behind = "-A FORWARD -j KUBE-FORWARD"
        for _ in range(3):
            assert it.health.ready
            it.firewall.touched.set()
            await it.settle()
        it.firewall.touched.set()
        await it.settle()
        assert not it.health.ready
        assert it.reconciler.repairs == 3 * 2  # both chains
        assert it.health.reasons[0].endswith("it is left behind that program's rule: -A FORWARD -j KUBE-FORWARD")
        now = 61.0
        it.firewall.behind = ""
        it.firewall.touched.set()
        await it.settle()
        assert it.health.ready


async def test_a_jump_that_is_left_behind_does_not_keep_its_chain_from_being_repaired() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.behind = "-A FORWARD -j KUBE-FORWARD"
        for _ in range(4):
            it.firewall.touched.set()
            await it.settle()
        it.firewall.chains.clear()
        it.firewall.touched.set()
        await it.settle()
        assert it.firewall.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]


async def test_the_rules_are_checked_when_nothing_happened_for_long_enough() -> None:
    it = Running()
    it.reconciler = Reconciler("n1", ALL, 0.0, it.firewall, it.health)
    async with it, asyncio.timeout(5):
        while it.firewall.checks <= 2:  # noqa: ASYNC110 - the checks are another thread's, and tell nobody
            await asyncio.sleep(0)


async def test_where_nothing_is_left_to_look_with_the_rules_are_checked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(seconds: float) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("services.masq.firewalls.sentry.Alarm", fail)
    it = Running()
    it.reconciler = Reconciler("n1", ALL, 0.0, it.firewall, it.health)
    it.firewall.is_same = True
    async with it, asyncio.timeout(5):
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        checks = it.firewall.checks
        while it.firewall.checks <= checks + 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        assert it.health.ready


async def test_where_the_firewall_is_the_same_nothing_is_read_again_and_that_is_a_check() -> None:
    it = Running()
    now = [1000.0]
    it.reconciler = Reconciler("n1", ALL, 0.0, it.firewall, it.health, clock=lambda: now[0])
    it.firewall.is_same = True
    async with it, asyncio.timeout(5):
        checks, now[0] = it.firewall.checks, 2000.0
        while it.reconciler.last_check_time != 2000.0:  # noqa: ASYNC110 - another thread looks, and tells nobody
            await asyncio.sleep(0)
        assert it.firewall.checks == checks
        it.firewall.is_same = False
        while it.firewall.checks == checks:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)


async def test_what_could_not_be_put_right_is_tried_again_though_nobody_has_changed_anything() -> None:
    it = Running()
    it.reconciler = Reconciler("n1", ALL, 0.0, it.firewall, it.health)
    it.firewall.is_same, it.firewall.stubborn = True, True
    async with it, asyncio.timeout(5):
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        checks = it.firewall.checks
        while it.firewall.checks <= checks + 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)


async def test_a_network_that_asks_for_another_firewall_leads_to_a_check() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        checks = it.firewall.checks
        nft = parse_network('{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}')
        await it.tell(replace(NETWORK_KNOWN, network=nft))
        assert it.reconciler.asks_for_nftables
        assert it.firewall.checks > checks


async def test_a_caller_who_leaves_a_teardown_does_not_interrupt_it() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        checks, caller = it.firewall.checks, asyncio.create_task(it.reconciler.teardown(dry_run=False))
        while it.firewall.checks == checks:  # noqa: ASYNC110 - a few turns of the loop
            await asyncio.sleep(0)
        caller.cancel()
        await it.reconciler.close()
        assert it.firewall.names() == []
        assert not any(rule.present for state in it.reconciler.states for rule in state.all_rules)
