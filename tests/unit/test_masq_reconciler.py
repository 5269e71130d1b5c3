"""The reconciler and the calls, against a firewall in memory."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Any

import pytest
from flannelette.masq.v1 import masq_pb2 as pb
from prometheus_client import REGISTRY

from services.core.errors import InvalidInput, NotImplementedYet, NotYet, Unavailable
from services.core.lease import Lease, Subnet
from services.core.network import parse_network
from services.core.table import Removed, Step, StoreStatus, Table, Upserted
from services.masq.firewalls.firewall import ChainState, RuleState
from services.masq.firewalls.notation import chain_form
from services.masq.reconciler import Reconciler
from services.masq.rules import Chain, RuleSettings
from services.masq.service import MasqServicer
from services.masq.surroundings import Surroundings
from services.runtime.health import Health

NETWORK = parse_network('{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}')
LEASE = Lease("10.5.27.0-24", "n1", (Subnet(ip_network("10.5.27.0/24")),), "vxlan")
MOVED = Lease("10.5.9.0-24", "n1", (Subnet(ip_network("10.5.9.0/24")),), "vxlan")
NETWORK_KNOWN = Step(reset=True, network=NETWORK, synced=True)
LEASE_KNOWN = Step(changes=(Upserted(LEASE),), synced=True)
ALL = RuleSettings(masquerade=True, forward=True, fully_random=True)


@dataclass
class FakeFirewall:
    """Has each chain whole or not at all."""

    chains: dict[tuple[str, str], Chain] = field(default_factory=dict)
    stubborn: bool = False
    """Somebody undoes at once what is repaired."""
    failure: str = ""
    behind: str = ""
    """Somebody has put this rule before our jumps."""
    name: str = "iptables"
    reason: str = "it is in memory"
    culprits: tuple[str, ...] = ()
    leftover: str = ""
    checks: int = 0
    touched: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self) -> None:
        """Nothing is missing."""

    async def check(self, chains: Sequence[Chain], *, repair: bool) -> tuple[ChainState, ...]:
        self.checks += 1
        await asyncio.sleep(0)
        if self.failure:
            raise Unavailable(self.failure)
        return tuple(self._check(chain, repair=repair) for chain in chains)

    async def changed(self) -> None:
        await self.touched.wait()
        self.touched.clear()

    async def close(self) -> None:
        """Nothing to free."""

    def flush(self) -> None:
        self.chains.clear()
        self.touched.set()

    def _check(self, chain: Chain, *, repair: bool) -> ChainState:
        key = (str(chain.family), chain.name)
        right = self.chains.get(key) == chain if chain.rules else key not in self.chains
        if repair and not right and not self.stubborn:
            self.chains.pop(key, None)
            if chain.rules:
                self.chains[key] = chain
        now = right or (repair and not self.stubborn)
        form = chain_form(chain)
        rules = tuple(RuleState(chain.table, chain.name, rule.text, now, 7, 420) for rule in form.rules)
        commands = () if right else (f"iptables -t {chain.table} {'-N' if chain.rules else '-X'} {chain.name}",)
        causes = () if right else ("chain missing",) if chain.rules else ("not wanted any more",)
        jump = RuleState(chain.table, chain.hook, form.jump.text, now)
        if right and self.behind and chain.rules:
            return ChainState(chain, jump, rules, ("jump not first",), ("iptables -I",), repair, self.behind)
        return ChainState(chain, jump, rules, causes, commands, now)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.chains)


class Running:
    """A reconciler whose jobs run, and what drives it."""

    def __init__(self, settings: RuleSettings = ALL) -> None:
        self.firewall = FakeFirewall()
        self.health = Health()
        self.around = Surroundings()
        self.reconciler = Reconciler("n1", settings, 3600, self.firewall, self.health, clock=lambda: 1234.5)
        self.servicer = MasqServicer(self.reconciler, self.health, lambda: self.around)
        self.table = Table()

    async def __aenter__(self) -> "Running":
        self._tasks = [asyncio.create_task(job()) for job in (self.reconciler.run, self.reconciler.watch)]
        await self.settle()
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def tell(self, *steps: Step) -> None:
        for step in steps:
            self.table.fold(step)
            self.reconciler.learn(self.table, away="")
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def status(self) -> pb.Status:
        return (await self.servicer.GetStatus(pb.GetStatusRequest(), NO_CONTEXT)).status


NO_CONTEXT: Any = None


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
    async with it:
        assert it.firewall.checks > 2


async def test_the_status_tells_what_is_kept() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        status = await it.status()
        assert (status.ready, list(status.reasons), status.node) == (True, [], "n1")
        assert (status.firewall, status.firewall_reason) == ("iptables", "it is in memory")
        assert (list(status.networks), list(status.subnets)) == (["10.5.0.0/16"], ["10.5.27.0/24"])
        assert (status.rules, status.rules_present, status.repairs) == (10, 10, 0)
        assert status.last_check_time.ToMicroseconds() == 1_234_500_000
        assert list(status.findings) == []


async def test_what_is_in_the_way_is_said_with_its_cure() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN)
        it.around = Surroundings(not_forwarding=frozenset({4}))
        it.firewall.leftover = "rules of ours or of a flanneld are left in iptables-legacy: apt-get install iptables"
        assert [finding.cure for finding in (await it.status()).findings] == [
            "sysctl -w net.ipv4.ip_forward=1",
            "apt-get install iptables",
        ]


async def test_what_is_left_out_is_said_in_the_status() -> None:
    async with Running(replace(ALL, fully_random=False)) as it:
        await it.tell(NETWORK_KNOWN)
        status = await it.status()
        assert status.firewall_reason.endswith("--random-fully is left out: --ip-masq-fully-random-disable")


async def test_a_network_that_asks_for_another_firewall_leads_to_a_check() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        checks = it.firewall.checks
        nft = parse_network('{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"vxlan"}}')
        await it.tell(replace(NETWORK_KNOWN, network=nft))
        assert it.reconciler.asks_for_nftables
        assert it.firewall.checks > checks


async def test_rules_are_listed_with_reason_and_counters() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        rules = (await it.servicer.ListRules(pb.ListRulesRequest(), NO_CONTEXT)).rules
        assert [rule.chain for rule in rules] == [
            "POSTROUTING",
            *["FLANNEL-POSTRTG"] * 6,
            "FORWARD",
            *["FLANNEL-FWD"] * 2,
        ]
        assert all(rule.present and rule.reason and rule.text for rule in rules)
        assert (rules[5].packets, rules[5].bytes) == (7, 420)


async def test_a_dry_run_only_says_what_it_would_do() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.chains.clear()
        planned = await it.servicer.ResyncRules(pb.ResyncRulesRequest(dry_run=True), NO_CONTEXT)
        assert it.firewall.names() == []
        done = await it.servicer.ResyncRules(pb.ResyncRulesRequest(), NO_CONTEXT)
        assert (
            planned.commands
            == done.commands
            == [
                "iptables -t nat -N FLANNEL-POSTRTG",
                "iptables -t filter -N FLANNEL-FWD",
            ]
        )
        assert it.firewall.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]


async def test_no_resync_before_the_network_is_known() -> None:
    async with Running() as it:
        with pytest.raises(NotYet, match="the network is not known yet"):
            await it.servicer.ResyncRules(pb.ResyncRulesRequest(), NO_CONTEXT)


async def test_after_a_teardown_nothing_comes_back_until_a_resync() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        planned = await it.servicer.TeardownRules(pb.TeardownRulesRequest(dry_run=True), NO_CONTEXT)
        assert len(it.firewall.chains) == 2
        assert it.health.ready
        done = await it.servicer.TeardownRules(pb.TeardownRulesRequest(), NO_CONTEXT)
        assert planned.commands == done.commands
        it.firewall.touched.set()
        await it.tell(Step(changes=(Removed(LEASE.name), Upserted(MOVED)), synced=True))
        assert it.firewall.names() == []
        assert it.health.reasons == [
            "the rules were torn down: ResyncRules or a restart of the service brings them back"
        ]
        assert (await it.status()).rules_present == 0
        await it.servicer.ResyncRules(pb.ResyncRulesRequest(dry_run=True), NO_CONTEXT)
        assert it.firewall.names() == []
        await it.servicer.ResyncRules(pb.ResyncRulesRequest(), NO_CONTEXT)
        assert len(it.firewall.chains) == 2
        assert it.health.ready
        assert it.reconciler.repairs == 0


async def test_a_packet_is_explained_by_the_rule_that_decides() -> None:
    async with Running() as it:
        ask = pb.ExplainRequest(source="10.5.27.2", destination="198.51.100.9")
        with pytest.raises(NotYet):
            await it.servicer.Explain(ask, NO_CONTEXT)
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        answer = await it.servicer.Explain(ask, NO_CONTEXT)
        assert answer.masqueraded
        assert [rule.chain for rule in answer.rules] == ["POSTROUTING", "FLANNEL-POSTRTG"]
        assert "! -d 224.0.0.0/4" in answer.rules[1].text
        none = await it.servicer.Explain(
            pb.ExplainRequest(source="2001:db8::1", destination="2001:db8::2"), NO_CONTEXT
        )
        assert not none.masqueraded
        assert "no rule of ours" in none.explanation


async def test_a_packet_without_a_source_is_that_of_a_pod_of_this_node() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        answer = await it.servicer.Explain(pb.ExplainRequest(destination="10.5.99.2"), NO_CONTEXT)
        assert answer.explanation.startswith("10.5.27.2 to 10.5.99.2: the source address stays")
        assert answer.HasField("masqueraded"), "JSON shows false only where it is set"


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (pb.ExplainRequest(source="x", destination="10.5.0.1"), InvalidInput, "source 'x' is no IP address"),
        (pb.ExplainRequest(source="10.5.0.1", destination="::1"), InvalidInput, "one address family"),
        (pb.ExplainRequest(source="10.5.0.1"), InvalidInput, "destination '' is no IP address"),
        (pb.ExplainRequest(destination="198.51.100.9"), NotYet, "this node has no IPv4 subnet yet"),
        (pb.ExplainRequest(source="10.5.0.1", destination="10.5.0.2", trace=True), NotImplementedYet, "trace"),
    ],
)
async def test_what_cannot_be_explained_is_refused(
    request_: pb.ExplainRequest, error: type[Exception], message: str
) -> None:
    async with Running() as it:
        with pytest.raises(error, match=message):
            await it.servicer.Explain(request_, NO_CONTEXT)
