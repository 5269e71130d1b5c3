"""What the answers of the three services mean together."""

from dataclasses import replace
from pathlib import Path

import pytest

from flannelette.services.core.conditions import Weight, found, unready
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.connect.targets import Service, targets
from flannelette.services.ctl.node_health import Answers, NodeHealth, State, assess, words_of
from flannelette.services.ctl.problems import Problem, headline, merged, problems
from flannelette.services.runtime.conditions import condition_to_proto
from flannelette.services.runtime.rpc.server import locked
from tests.ctl import samples as samples

MISSING = CallFailed("there is no socket", missing=True)
KILLED = CallFailed("nobody listens")
WELL = Answers(samples.lease_status(), samples.dataplane_status(), samples.masq_status())


def assessed(answers: Answers, *, lease: str | None = None) -> NodeHealth:
    return assess(answers, targets(Path("/run/flannelette"), {"lease": lease}))


def remarks(node: NodeHealth, service: Service) -> list[str]:
    return [words_of(each) for each in node.services[service].remarks]


def test_three_ready_services_are_healthy() -> None:
    node = assessed(WELL)
    assert (node.exit_code, node.name) == (0, "h1")
    assert {s.state for s in node.services.values()} == {State.READY}


def test_nobody_answering_is_not_the_same_as_unhealthy() -> None:
    assert assessed(Answers(MISSING, MISSING, MISSING)).exit_code == 2
    assert assessed(Answers(KILLED, KILLED, KILLED)).exit_code == 2


def test_one_service_away_is_unhealthy_and_the_others_are_still_judged() -> None:
    node = assessed(replace(WELL, masq=KILLED))
    assert node.exit_code == 1
    assert [s.state for s in node.services.values()] == [State.READY, State.READY, State.AWAY]
    assert remarks(node, "masq") == ["nobody listens"]


def test_a_service_that_is_not_ready_gives_its_own_reasons() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.ready = False
    dataplane.status.reasons.append("no lease yet")
    dataplane.status.lease_service_connected = False
    node = assessed(replace(WELL, dataplane=dataplane))
    assert node.exit_code == 1
    assert remarks(node, "dataplane") == ["no lease yet"]


def test_a_node_of_a_central_lease_service_is_healthy_without_a_lease_socket() -> None:
    node = assessed(replace(WELL, lease=MISSING))
    assert node.exit_code == 0
    assert node.services["lease"].state is State.ELSEWHERE
    assert "--lease" in remarks(node, "lease")[0]


def test_a_lease_service_is_missed_when_the_dataplane_is_connected_to_none() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.lease_service_connected = False
    node = assessed(replace(WELL, lease=MISSING, dataplane=dataplane))
    assert node.exit_code == 1
    assert node.services["lease"].state is State.AWAY
    assert "--lease-address" in remarks(node, "lease")[1]


def test_a_lease_service_that_was_named_or_killed_is_missed_in_any_case() -> None:
    assert assessed(replace(WELL, lease=MISSING), lease="unix:/elsewhere/lease.sock").exit_code == 1
    assert assessed(replace(WELL, lease=KILLED)).exit_code == 1


def test_the_host_of_a_central_lease_service_needs_neither_dataplane_nor_masq() -> None:
    node = assessed(Answers(samples.lease_status(node=""), MISSING, MISSING))
    assert (node.exit_code, node.name) == (0, "")
    assert node.services["masq"].state is State.ELSEWHERE


@pytest.mark.parametrize("service", ["dataplane", "masq"])
def test_where_one_of_them_has_run_both_are_missed_beside_a_central_lease_service(
    service: str, tmp_path: Path
) -> None:
    """One that ends by itself, as after an error, takes its socket with it; the lock stays until a reboot."""
    crashed = Answers(samples.lease_status(node=""), MISSING, MISSING)
    there = targets(tmp_path, {})
    assert assess(crashed, there).exit_code == 0
    with locked(tmp_path / f"{service}.sock"):
        pass
    node = assess(crashed, there)
    assert (node.exit_code, node.healthy) == (1, False)
    assert [node.services[each].state for each in ("dataplane", "masq")] == [State.AWAY, State.AWAY]
    assert len(problems(node)) == 2


def test_beside_a_dataplane_masq_is_missed_also_with_a_central_lease_service() -> None:
    assert assessed(Answers(samples.lease_status(node=""), samples.dataplane_status(), MISSING)).exit_code == 1


def test_a_lease_service_of_one_node_wants_both() -> None:
    assert assessed(Answers(samples.lease_status(node="h1"), MISSING, MISSING)).exit_code == 1


def test_a_ready_dataplane_that_follows_nobody_is_not_well() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.lease_service_connected = False
    node = assessed(replace(WELL, dataplane=dataplane))
    assert node.exit_code == 1
    assert "last ones known" in remarks(node, "dataplane")[0]


def test_a_store_that_is_away_is_told_once_with_its_figures() -> None:
    lease = samples.lease_status()
    lease.ready = False
    lease.conditions.append(condition_to_proto(unready("own store", "the etcd store is away: etcd does not answer")))
    node = assessed(replace(WELL, lease=lease))
    assert [(each.code, each.weight) for each in problems(node)] == [("unready.own-store", Weight.SOON)]
    away = found("store.away", complaint="etcd does not answer", evidence="last answer 34 s ago")
    lease.conditions.append(condition_to_proto(away))
    node = assessed(replace(WELL, lease=lease))
    (problem,) = problems(node)
    assert (problem.check, problem.weight) == ("store-away", Weight.SOON)
    assert problem.effects == ("lease: the etcd store is away: etcd does not answer",)
    assert headline(node) == ("h1 is not healthy: 1 problem", 1)


def test_an_etcd_without_a_majority_is_one_problem_of_all_nodes_and_breaks_nothing_yet() -> None:
    """Each service of each node says that it waits for the store; the nodes' leases are not renewed."""
    by_node = []
    for name in ("h1", "h2", "h3"):
        lease, dataplane, masq = samples.lease_status(), samples.dataplane_status(), samples.masq_status()
        lease.ready = dataplane.status.ready = masq.status.ready = False
        quorum = found("store.quorum", complaint=f"etcd as {name} sees it has no leader")
        of_lease = (unready("own store", f"the etcd store is away: {name}"), quorum)
        lease.conditions.extend(map(condition_to_proto, of_lease))
        of_dataplane = (
            unready("store", "no leader"),
            found("node.own-lease", lease="l", runs="runs", time="12:00", reason="no leader"),
        )
        dataplane.status.conditions.extend(map(condition_to_proto, of_dataplane))
        dataplane.status.store_connected = False
        masq.status.conditions.append(condition_to_proto(unready("store", "the store is away")))
        by_node.append((name, problems(assessed(Answers(lease, dataplane, masq)))))
    assert [[(each.code, each.weight) for each in told] for _, told in by_node] == [
        [("store.quorum", Weight.SOON)]
    ] * 3
    (problem,) = merged(by_node)
    assert (problem.code, problem.weight, problem.nodes) == ("store.quorum", Weight.SOON, ("h1", "h2", "h3"))
    assert any("masq: " in effect for effect in problem.effects)


def test_a_service_of_an_older_release_is_shown_with_its_words_and_weighed_by_its_flags() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.ready = False
    dataplane.status.reasons.append("the lease service has lost its store: etcd has no leader")
    dataplane.status.store_connected = False
    dataplane.status.findings.add(check="new", problem="Something.", broken=True)
    told = [(each.problem, each.weight) for each in problems(assessed(replace(WELL, dataplane=dataplane)))]
    assert told == [
        ("Something.", Weight.BROKEN),
        ("the lease service has lost its store: etcd has no leader", Weight.SOON),
    ]


def test_what_two_services_find_is_told_once_with_the_graver_weight() -> None:
    masq, dataplane = samples.masq_status(), samples.dataplane_status()
    warned, lost = (
        condition_to_proto(found("host.forwarding-off", family="IPv4", key="k", cure="sysctl", weight=weight))
        for weight in (Weight.WARNING, Weight.BROKEN)
    )
    masq.status.conditions.append(warned)
    assert headline(assessed(replace(WELL, masq=masq)))[1] == 0
    dataplane.status.ready = False
    broken = condition_to_proto(unready("forwarding", "forwarding is broken: The kernel forwards no IPv4 packets."))
    dataplane.status.conditions.extend((broken, lost))
    node = assessed(replace(WELL, masq=masq, dataplane=dataplane))
    assert [(each.check, each.weight) for each in problems(node)] == [("forwarding-off", Weight.BROKEN)]
    assert headline(node)[1] == 1


def test_a_difference_in_ip_masq_is_found() -> None:
    masq = samples.masq_status()
    masq.status.masquerade = False
    node = assessed(replace(WELL, masq=masq))
    assert node.exit_code == 1
    assert remarks(node, "masq") == [
        "--ip-masq is false here and true on the dataplane, so no rule masquerades what pods send to the outside"
        "; cure: flannelette-masq --ip-masq"
    ]
    masq.status.masquerade, dataplane = True, samples.dataplane_status()
    dataplane.status.ip_masq = False
    (remark,) = remarks(assessed(replace(WELL, masq=masq, dataplane=dataplane)), "masq")
    assert remark.endswith("; cure: flannelette-dataplane --ip-masq")


def test_peers_that_cannot_be_reached_are_not_well_although_the_dataplane_is_ready() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.peers.total, dataplane.status.peers.failed = 3, 1
    node = assessed(replace(WELL, dataplane=dataplane))
    assert node.exit_code == 1
    assert remarks(node, "dataplane") == ["1 of 3 peers cannot be reached: `flannelette peers` says why"]


def test_a_configuration_that_is_not_in_force_is_not_well() -> None:
    lease = samples.lease_status()
    lease.network_error = "it is not valid JSON"
    node = assessed(replace(WELL, lease=lease))
    assert node.exit_code == 1
    assert remarks(node, "lease") == ["the stored network configuration is not in force: it is not valid JSON"]


def test_a_lease_service_with_quarantined_keys_or_held_removals_is_not_well_and_says_what_to_do() -> None:
    lease = samples.lease_status()
    lease.quarantined, lease.held_removals, lease.held_reason = 1, 20, "20 leases went at once"
    node = assessed(replace(WELL, lease=lease))
    assert node.exit_code == 1
    assert remarks(node, "lease") == [
        "1 key of the store refused: `flannelette quarantine` says why",
        "20 leases went at once (`flannelette confirm-removal`)",
    ]


@pytest.mark.parametrize("weight", [Weight.BROKEN, Weight.SOON, Weight.WARNING])
def test_no_cause_that_is_told_hides_lost_packets(weight: Weight) -> None:
    """A lease service, which a dataplane need not believe, may tell any cause with any weight."""
    store = Problem("lease", "The store is away.", weight=Weight.SOON, code="store.away")
    effect = Problem("dataplane", "It waits for its lease.", weight=weight, code="unready.own-store")
    told = merged([("n1", [store, effect])])
    assert [(each.problem, each.weight) for each in told] == [(store.problem, min(weight, Weight.SOON))]
    assert told[0].effects == ("dataplane: It waits for its lease.",)


@pytest.mark.parametrize(("cure", "is_one"), [("ufw allow", True), ("ufw allow out", False), ("", False)])
def test_what_one_command_cures_is_one_problem(cure: str, *, is_one: bool) -> None:
    """A trace to a silent peer ends at the rule that masq names, with the same cure."""
    rule = Problem("masq", "A rule drops the tunnel.", cure, weight=Weight.BROKEN, code="firewall.rule-tunnel")
    silent = Problem("dataplane", "No answer comes from h1.", "ufw allow"[: len(cure)], code="peer.tunnel")
    told = merged([("h2", [rule, silent])])
    assert [each.problem for each in told] == [rule.problem, *([] if is_one else [silent.problem])]
    assert told[0].effects == (("dataplane: No answer comes from h1.",) if is_one else ())


@pytest.mark.parametrize("cure", ["", "nft insert"])
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_rule_that_may_drop_the_tunnel_does_where_a_peer_is_silent(cure: str, *, is_silent: bool) -> None:
    """What a match asks for may be unknown, as a random number is: whether packets are lost, the pings say."""
    rule = Problem("masq", "A rule may drop the tunnel.", "nft insert", code="firewall.rule-tunnel")
    silent = Problem("dataplane", "No answer comes through the overlay from h1.", cure, code="peer.tunnel")
    (told,) = merged([("h2", [rule, *([silent] if is_silent else [])])])
    assert told.weight is (Weight.BROKEN if is_silent else Weight.WARNING)
    assert told.effects == (("dataplane: No answer comes through the overlay from h1.",) if is_silent else ())


@pytest.mark.parametrize("known", ["traced", "certain"])
def test_a_rule_that_may_drop_the_tunnel_is_not_blamed_for_what_has_another_cause(known: str) -> None:
    """A trace has found the place elsewhere, or another rule drops the tunnel for certain."""
    rule = Problem("masq", "A rule may drop the tunnel.", "nft insert", code="firewall.rule-tunnel")
    silent = Problem("dataplane", "No answer comes through the overlay from h1.", code="peer.tunnel")
    certain = Problem(
        "masq", "A rule drops the tunnel.", "iptables", weight=Weight.BROKEN, code="firewall.rule-tunnel"
    )
    told = merged(
        [("h2", [rule, replace(silent, cure="ip link set up")] if known == "traced" else [rule, silent, certain])]
    )
    assert [(each.problem, each.weight, each.effects) for each in told if each.cure == rule.cure] == [
        (rule.problem, Weight.WARNING, ())
    ]
