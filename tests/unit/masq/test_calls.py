"""The calls of masq, over a reconciler whose firewall is in memory."""

from dataclasses import replace
from ipaddress import ip_network

import pytest

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.errors import InvalidInput, NotImplementedYet, NotYet
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Removed, Step, Upserted
from tests.examples.masq_firewall import ALL, LEASE, LEASE_KNOWN, MOVED, NETWORK_KNOWN, NO_CONTEXT, Running


async def test_the_status_tells_what_is_kept() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        status = await it.status()
        assert (status.ready, list(status.reasons), status.node) == (True, [], "n1")
        assert (status.firewall, status.firewall_reason) == ("iptables-nft", "chosen by the test")
        assert (list(status.networks), list(status.subnets)) == (["10.5.0.0/16"], ["10.5.27.0/24"])
        assert (status.rules, status.rules_present, status.repairs) == (10, 10, 0)
        assert status.last_check_time.ToMicroseconds() == 1_234_500_000
        assert list(status.findings) == []


async def test_what_is_in_the_way_is_said_with_its_cure() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN)
        it.be_host(not_forwarding=frozenset({4}))
        it.firewall.stale_rules_error = (
            "rules of ours or of a flanneld are left in iptables-legacy: apt-get install iptables"
        )
        assert [finding.cure for finding in (await it.status()).findings] == [
            "sysctl -w net.ipv4.ip_forward=1",
            "apt-get install iptables",
        ]


async def test_a_problem_that_goes_on_is_one_event_however_its_count_grows() -> None:
    async with Running(replace(ALL, fully_random=False)) as it:
        await it.tell(NETWORK_KNOWN)
        for lost in range(1, 4):
            it.be_host(insert_failed=lost)
            (finding,) = (await it.status()).findings
            assert finding.evidence.endswith(f"insert_failed {lost}")
        it.be_host()
        await it.status()
        kinds = [pb.EVENT_KIND_FINDING, pb.EVENT_KIND_FINDING_GONE]
        call = it.servicer.WatchEvents(pb.WatchEventsRequest(no_follow=True, kinds=kinds), NO_CONTEXT)
        assert [event.kind async for event in call] == kinds


async def test_what_is_left_out_is_said_in_the_status() -> None:
    async with Running(replace(ALL, fully_random=False)) as it:
        await it.tell(NETWORK_KNOWN)
        status = await it.status()
        assert status.firewall_reason.endswith("--random-fully is left out: --ip-masq-fully-random-disable")


async def test_rules_are_listed_with_their_reasons() -> None:
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


async def test_a_dry_run_only_says_what_it_would_do() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        it.firewall.restore("")
        planned = await it.servicer.ResyncRules(pb.ResyncRulesRequest(dry_run=True), NO_CONTEXT)
        assert it.names() == []
        done = await it.servicer.ResyncRules(pb.ResyncRulesRequest(), NO_CONTEXT)
        assert planned.commands == done.commands
        assert [command for command in done.commands if " -N " in command] == [
            "iptables-nft -t nat -N FLANNEL-POSTRTG",
            "iptables-nft -t filter -N FLANNEL-FWD",
        ]
        assert it.names() == ["FLANNEL-FWD", "FLANNEL-POSTRTG"]


async def test_no_resync_before_the_network_is_known() -> None:
    async with Running() as it:
        with pytest.raises(NotYet, match="the network is not known yet"):
            await it.servicer.ResyncRules(pb.ResyncRulesRequest(), NO_CONTEXT)


async def test_after_a_teardown_nothing_comes_back_until_a_resync() -> None:
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, LEASE_KNOWN)
        planned = await it.servicer.TeardownRules(pb.TeardownRulesRequest(dry_run=True), NO_CONTEXT)
        assert len(it.names()) == 2
        assert it.health.ready
        done = await it.servicer.TeardownRules(pb.TeardownRulesRequest(), NO_CONTEXT)
        assert planned.commands == done.commands
        it.firewall.insert("filter", "-A FORWARD -j OTHER")
        await it.tell(Step(changes=(Removed(LEASE.name), Upserted(MOVED)), synced=True))
        assert it.names() == []
        assert it.health.reasons == ["torn down by an operator; `flannelette resync` or a restart ends it"]
        assert (await it.status()).rules_present == 0
        await it.servicer.ResyncRules(pb.ResyncRulesRequest(dry_run=True), NO_CONTEXT)
        assert it.names() == []
        await it.servicer.ResyncRules(pb.ResyncRulesRequest(), NO_CONTEXT)
        assert len(it.names()) == 2
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
        (pb.ExplainRequest(source="x", destination="10.5.0.1"), InvalidInput, "source 'x' is not an IP address"),
        (pb.ExplainRequest(source="10.5.0.1", destination="::1"), InvalidInput, "one address family"),
        (pb.ExplainRequest(source="10.5.0.1"), InvalidInput, "destination '' is not an IP address"),
        (
            pb.ExplainRequest(destination="10.5.0.1", source="10.5.0.2", hook="nat"),
            InvalidInput,
            "hook 'nat' does not exist: write forward, input, output",
        ),
        (pb.ExplainRequest(destination="198.51.100.9"), NotYet, "this node has no IPv4 subnet yet"),
        (
            pb.ExplainRequest(destination="10.5.0.1", source="10.5.0.2", trace=True),
            NotImplementedYet,
            "nft monitor trace",
        ),
    ],
)
async def test_what_cannot_be_explained_is_refused(
    request_: pb.ExplainRequest, error: type[Exception], message: str
) -> None:
    async with Running() as it:
        with pytest.raises(error, match=message):
            await it.servicer.Explain(request_, NO_CONTEXT)


async def test_a_node_of_few_addresses_has_a_pod_to_explain_too() -> None:
    small = Lease("10.5.27.0-31", "n1", (Subnet(ip_network("10.5.27.0/31")),), "vxlan")
    async with Running() as it:
        await it.tell(NETWORK_KNOWN, Step(changes=(Upserted(small),), synced=True))
        response = await it.servicer.Explain(pb.ExplainRequest(destination="192.0.2.1"), NO_CONTEXT)
        assert response.masqueraded
