"""What the answers of the three services mean together."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from flannelette.services.core.conditions import Weight, found, unready
from flannelette.services.runtime.conditions import condition_to_proto
from flannelette.services.runtime.rpc.server import locked
from tests.ctl import samples
from tests.ctl.health import KILLED, MISSING, answered, problem, shown

SERVICES: Final = ("lease", "dataplane", "masq")


def test_three_ready_services_are_healthy() -> None:
    node = answered()
    assert (node.exit_code, node.name) == (0, "h1")
    assert {node.state(each) for each in SERVICES} == {"READY"}


def test_nobody_answering_is_not_the_same_as_unhealthy() -> None:
    assert answered(lease=MISSING, dataplane=MISSING, masq=MISSING).exit_code == 2
    assert answered(lease=KILLED, dataplane=KILLED, masq=KILLED).exit_code == 2


def test_one_service_away_is_unhealthy_and_the_others_are_still_judged() -> None:
    node = answered(masq=KILLED)
    assert node.exit_code == 1
    assert [node.state(each) for each in SERVICES] == ["READY", "READY", "AWAY"]
    assert node.remarks("masq") == ["nobody listens"]


def test_a_service_that_is_not_ready_gives_its_own_reasons() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.ready = False
    dataplane.status.reasons.append("no lease yet")
    dataplane.status.lease_service_connected = False
    node = answered(dataplane=dataplane)
    assert node.exit_code == 1
    assert node.remarks("dataplane") == ["no lease yet"]


def test_a_node_of_a_central_lease_service_is_healthy_without_a_lease_socket() -> None:
    node = answered(lease=MISSING)
    assert node.exit_code == 0
    assert node.state("lease") == "ELSEWHERE"
    assert "--lease" in node.remarks("lease")[0]


def test_a_lease_service_is_missed_when_the_dataplane_is_connected_to_none() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.lease_service_connected = False
    node = answered(lease=MISSING, dataplane=dataplane)
    assert node.exit_code == 1
    assert node.state("lease") == "AWAY"
    assert "--lease-address" in node.remarks("lease")[1]


def test_a_lease_service_that_was_named_or_killed_is_missed_in_any_case() -> None:
    assert answered(lease=MISSING, address="unix:/elsewhere/lease.sock").exit_code == 1
    assert answered(lease=KILLED).exit_code == 1


def test_the_host_of_a_central_lease_service_needs_neither_dataplane_nor_masq() -> None:
    node = answered(lease=samples.lease_status(node=""), dataplane=MISSING, masq=MISSING)
    assert (node.exit_code, node.name) == (0, "")
    assert node.state("masq") == "ELSEWHERE"


@pytest.mark.parametrize("service", ["dataplane", "masq"])
def test_where_one_of_them_has_run_both_are_missed_beside_a_central_lease_service(
    service: str, tmp_path: Path
) -> None:
    """One that ends by itself, as after an error, takes its socket with it; the lock stays until a reboot."""
    crashed: dict[str, Any] = {"lease": samples.lease_status(node=""), "dataplane": MISSING, "masq": MISSING}
    assert answered(**crashed, directory=tmp_path).exit_code == 0
    with locked(tmp_path / f"{service}.sock"):
        pass
    node = answered(**crashed, directory=tmp_path)
    assert node.exit_code == 1
    assert [node.state(each) for each in SERVICES[1:]] == ["AWAY", "AWAY"]
    assert len(node.problems) == 2


def test_beside_a_dataplane_masq_is_missed_also_with_a_central_lease_service() -> None:
    assert (
        answered(lease=samples.lease_status(node=""), dataplane=samples.dataplane_status(), masq=MISSING).exit_code
        == 1
    )


def test_a_lease_service_of_one_node_wants_both() -> None:
    assert answered(lease=samples.lease_status(node="h1"), dataplane=MISSING, masq=MISSING).exit_code == 1


def test_a_ready_dataplane_that_follows_nobody_is_not_well() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.lease_service_connected = False
    node = answered(dataplane=dataplane)
    assert node.exit_code == 1
    assert "last ones known" in node.remarks("dataplane")[0]


def test_a_store_that_is_away_is_told_once_with_its_figures() -> None:
    lease = samples.lease_status()
    lease.ready = False
    lease.conditions.append(condition_to_proto(unready("own store", "the etcd store is away: etcd does not answer")))
    node = answered(lease=lease)
    assert [(each.code, each.weight) for each in node.problems] == [("unready.own-store", Weight.SOON)]
    away = found("store.away", complaint="etcd does not answer", evidence="last answer 34 s ago")
    lease.conditions.append(condition_to_proto(away))
    node = answered(lease=lease)
    (told,) = node.problems
    assert (told.check, told.weight) == ("store-away", Weight.SOON)
    assert told.effects == ("lease: the etcd store is away: etcd does not answer",)
    assert node.headline == ("h1 is not healthy: 1 problem", 1)


def test_an_etcd_without_a_majority_is_one_problem_of_all_nodes_and_breaks_nothing_yet() -> None:
    """Each service of each node says that it waits for the store; the nodes' leases are not renewed."""
    by_node = list[Any]()
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
        by_node.append((name, answered(lease=lease, dataplane=dataplane, masq=masq).problems))
    assert [[(each.code, each.weight) for each in told] for _, told in by_node] == [
        [("store.quorum", Weight.SOON)]
    ] * 3
    (told,) = shown(*by_node)
    assert (told.code, told.weight, told.nodes) == ("store.quorum", Weight.SOON, ("h1", "h2", "h3"))
    assert any("masq: " in effect for effect in told.effects)


def test_a_service_of_an_older_release_is_shown_with_its_words_and_weighed_by_its_flags() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.ready = False
    dataplane.status.reasons.append("the lease service has lost its store: etcd has no leader")
    dataplane.status.store_connected = False
    dataplane.status.findings.add(check="new", problem="Something.", broken=True)
    told = [(each.problem, each.weight) for each in answered(dataplane=dataplane).problems]
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
    assert answered(masq=masq).headline[1] == 0
    dataplane.status.ready = False
    broken = condition_to_proto(unready("forwarding", "forwarding is broken: The kernel forwards no IPv4 packets."))
    dataplane.status.conditions.extend((broken, lost))
    node = answered(masq=masq, dataplane=dataplane)
    assert [(each.check, each.weight) for each in node.problems] == [("forwarding-off", Weight.BROKEN)]
    assert node.headline[1] == 1


def test_a_difference_in_ip_masq_is_found() -> None:
    masq = samples.masq_status()
    masq.status.masquerade = False
    node = answered(masq=masq)
    assert node.exit_code == 1
    assert node.remarks("masq") == [
        "--ip-masq is false here and true on the dataplane, so no rule masquerades what pods send to the outside"
        "; cure: flannelette-masq --ip-masq"
    ]
    masq.status.masquerade, dataplane = True, samples.dataplane_status()
    dataplane.status.ip_masq = False
    (remark,) = answered(masq=masq, dataplane=dataplane).remarks("masq")
    assert remark.endswith("; cure: flannelette-dataplane --ip-masq")


def test_peers_that_cannot_be_reached_are_not_well_although_the_dataplane_is_ready() -> None:
    dataplane = samples.dataplane_status()
    dataplane.status.peers.total, dataplane.status.peers.failed = 3, 1
    node = answered(dataplane=dataplane)
    assert node.exit_code == 1
    assert node.remarks("dataplane") == ["1 of 3 peers cannot be reached: `flannelette peers` says why"]


def test_a_configuration_that_is_not_in_force_is_not_well() -> None:
    lease = samples.lease_status()
    lease.network_error = "it is not valid JSON"
    node = answered(lease=lease)
    assert node.exit_code == 1
    assert node.remarks("lease") == ["the stored network configuration is not in force: it is not valid JSON"]


def test_a_lease_service_with_quarantined_keys_or_held_removals_is_not_well_and_says_what_to_do() -> None:
    lease = samples.lease_status()
    lease.quarantined, lease.held_removals, lease.held_reason = 1, 20, "20 leases went at once"
    node = answered(lease=lease)
    assert node.exit_code == 1
    assert node.remarks("lease") == [
        "1 key of the store refused: `flannelette quarantine` says why",
        "20 leases went at once (`flannelette confirm-removal`)",
    ]


@pytest.mark.parametrize("weight", [Weight.BROKEN, Weight.SOON, Weight.WARNING])
def test_no_cause_that_is_told_hides_lost_packets(weight: Weight) -> None:
    """A lease service, which a dataplane need not believe, may tell any cause with any weight."""
    store = problem("lease", "The store is away.", weight=Weight.SOON, code="store.away")
    effect = problem("dataplane", "It waits for its lease.", weight=weight, code="unready.own-store")
    told = shown(("n1", [store, effect]))
    assert [(each.problem, each.weight) for each in told] == [(store.problem, min(weight, Weight.SOON))]
    assert told[0].effects == ("dataplane: It waits for its lease.",)


@pytest.mark.parametrize(("cure", "is_one"), [("ufw allow", True), ("ufw allow out", False), ("", False)])
def test_what_one_command_cures_is_one_problem(cure: str, *, is_one: bool) -> None:
    """A trace to a silent peer ends at the rule that masq names, with the same cure."""
    rule = problem("masq", "A rule drops the tunnel.", cure, weight=Weight.BROKEN, code="firewall.rule-tunnel")
    silent = problem("dataplane", "No answer comes from h1.", "ufw allow"[: len(cure)], code="peer.tunnel")
    told = shown(("h2", [rule, silent]))
    assert [each.problem for each in told] == [rule.problem, *([] if is_one else [silent.problem])]
    assert told[0].effects == (("dataplane: No answer comes from h1.",) if is_one else ())


@pytest.mark.parametrize("cure", ["", "nft insert"])
@pytest.mark.parametrize("is_silent", [True, False])
def test_a_rule_that_may_drop_the_tunnel_does_where_a_peer_is_silent(cure: str, *, is_silent: bool) -> None:
    """What a match asks for may be unknown, as a random number is: whether packets are lost, the pings say."""
    rule = problem("masq", "A rule may drop the tunnel.", "nft insert", code="firewall.rule-tunnel")
    silent = problem("dataplane", "No answer comes through the overlay from h1.", cure, code="peer.tunnel")
    (told,) = shown(("h2", [rule, *([silent] if is_silent else [])]))
    assert told.weight is (Weight.BROKEN if is_silent else Weight.WARNING)
    assert told.effects == (("dataplane: No answer comes through the overlay from h1.",) if is_silent else ())


@pytest.mark.parametrize("known", ["traced", "certain"])
def test_a_rule_that_may_drop_the_tunnel_is_not_blamed_for_what_has_another_cause(known: str) -> None:
    """A trace has found the place elsewhere, or another rule drops the tunnel for certain."""
    rule = problem("masq", "A rule may drop the tunnel.", "nft insert", code="firewall.rule-tunnel")
    silent = problem("dataplane", "No answer comes through the overlay from h1.", code="peer.tunnel")
    certain = problem(
        "masq", "A rule drops the tunnel.", "iptables", weight=Weight.BROKEN, code="firewall.rule-tunnel"
    )
    told = shown(
        ("h2", [rule, replace(silent, cure="ip link set up")] if known == "traced" else [rule, silent, certain])
    )
    assert [(each.problem, each.weight, each.effects) for each in told if each.cure == rule.cure] == [
        (rule.problem, Weight.WARNING, ())
    ]
