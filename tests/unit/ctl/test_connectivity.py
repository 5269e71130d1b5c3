"""What `flannelette connectivity` prints on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.conditions import Weight
from flannelette.services.ctl.commands.connectivity import (
    Check,
    PairOutcome,
    checks_of,
    junit,
    peer_checks,
    pods_without_address,
    problems_of,
    report,
    with_traces,
)
from flannelette.services.ctl.commands.doctor import with_losing_place, with_places
from flannelette.services.ctl.connect.targets import targets
from flannelette.services.ctl.main import cli
from flannelette.services.ctl.node_health import Answers, assess
from flannelette.services.ctl.packet_path import PathStep, Verdict
from flannelette.services.ctl.problems import Problem, doctor_text
from tests.ctl import clusters, samples

Answer: TypeAlias = "pb.Answering.ValueType"
YES, SILENT, UNKNOWN = pb.ANSWERING_YES, pb.ANSWERING_SILENT, pb.ANSWERING_UNKNOWN
OVERLAY, UNDERLAY = pb.PROBE_LAYER_OVERLAY, pb.PROBE_LAYER_UNDERLAY


def probe(
    layer: pb.ProbeLayer.ValueType,
    node: str,
    *,
    small: Answer = YES,
    full: Answer = YES,
) -> pb.PathProbe:
    number = int(node[1:])
    address = f"10.5.{number}.0" if layer == OVERLAY else f"10.99.0.{number}"
    time = 210 if small == YES else 0
    return pb.PathProbe(
        node=node, layer=layer, address=address, small=small, full_size=full, size=1450, round_trip_microseconds=time
    )


def cluster(size: int, full: Callable[[str, str], Answer], small: Callable[[str, str], bool]) -> list[Check]:
    """All nodes ask all."""
    names = [f"h{number}" for number in range(1, size + 1)]
    checks = []
    for source in names:
        probes = []
        for target in names:
            if target != source:
                answers = small(source, target)
                probes += [
                    probe(OVERLAY, target, small=YES if answers else SILENT, full=full(source, target)),
                    probe(UNDERLAY, target),
                ]
        checks += [*peer_checks(source, names, probes)]
    reason = "give --outside ADDRESS"
    return [*checks, Check("outside", "", "", "", "", 0, PairOutcome.SKIPPED, reason)]


def text(size: int, checks: Iterable[Check], *told: Problem) -> list[str]:
    names = [f"h{number}" for number in range(1, size + 1)]
    shown = report([*checks], doctor_text(names, told, 80) if told else None, 80).plain.splitlines()
    assert max(map(len, shown)) <= 80
    return shown


def test_three_nodes_that_reach_each_other() -> None:
    checks = cluster(3, lambda *_: YES, lambda *_: True)
    assert text(3, checks) == [
        "",
        "ok   overlay   12 of 12 passed  every node to every other, through the overlay",
        "ok   underlay  12 of 12 passed  every node to the public address of every other",
        "-    pod       -",
        "-    outside   skipped: give --outside ADDRESS",
        "",
        "FROM  h1    h2    h3",
        "h1    -     0.21  0.21",
        "h2    0.21  -     0.21",
        "h3    0.21  0.21  -",
        "round-trip time in ms; FAIL: not reached; large: full-size packets are lost",
        "",
        "all 24 checks passed",
    ]


def test_what_a_trace_has_found_stands_in_place_of_the_sentence_of_the_probe() -> None:
    lost = {
        ("h1", "10.5.2.0"): Check("overlay", "h1", "h2", "10.5.2.0", "IPv4", 0, PairOutcome.FAILED),
        ("h3", "10.5.4.0"): Check("overlay", "h3", "h4", "10.5.4.0", "IPv4", 0, PairOutcome.FAILED),
    }
    step = PathStep("h2", False, "firewall", "-A INPUT -j DROP", Verdict.BROKEN, "A rule drops them.", "iptables -I")
    silent = [Problem("dataplane", "No answer.", check="peer-tunnel", nodes=(name,)) for name in ("h1", "h3")]
    found = with_traces(silent, lost, {("h1", "10.5.2.0"): step})
    assert [(each.problem, each.cause, each.cure, each.nodes) for each in found] == [
        ("Packets between h1 and h2 are lost.", "A rule drops them.", "iptables -I", ("h2",)),
        ("No answer.", "", "", ("h3",)),
    ]
    known = Problem("masq", "Dropped.", cause="A rule drops them.", nodes=("h2",))
    assert with_traces([known], lost, {("h1", "10.5.2.0"): step}) == [known]


def test_each_silent_peer_has_the_place_that_its_own_trace_has_found() -> None:
    silent = Problem(
        "dataplane", "No answer from h2, h3, h4.", check="peer-tunnel", code="peer.tunnel", peers=("h2", "h3", "h4")
    )
    drop = PathStep("h2", False, "firewall", "-A INPUT -j DROP", Verdict.BROKEN, "A rule drops them.", "iptables -I")
    route = PathStep("h1", True, "route", "blackhole", Verdict.BROKEN, "A route drops them.", "ip route del")
    found = with_places(silent, "h1", {"h2": drop, "h4": route})
    assert [(each.peers, each.cause, each.cure) for each in found] == [
        (("h2",), "On h2: A rule drops them.", "iptables -I"),
        (("h4",), "A route drops them.", "ip route del"),
        (("h3",), "", ""),
    ]
    assert [each.problem.partition(";")[0] for each in found] == [
        f"No answer comes through the overlay from {peer}" for peer in ("h2", "h4", "h3")
    ]
    assert with_places(silent, "h1", {}) == [silent]
    (both,) = with_places(replace(silent, peers=("h2", "h4")), "h1", {"h2": drop, "h4": drop})
    assert (both.problem, both.peers) == (silent.problem, ("h2", "h4"))


def test_traffic_control_that_has_dropped_packets_is_named_and_no_firewall_is_blamed() -> None:
    silent = Problem("dataplane", "No answer.", cause="A firewall or so.", check="peer-tunnel")
    queue = Problem("masq", "Dropped.", cause="The queueing discipline tbf.", evidence="tc", check="queue-drops")
    found = with_losing_place(silent, [queue, silent])
    assert (found.problem, found.cause, found.evidence) == ("No answer.", "The queueing discipline tbf.", "tc")
    assert with_losing_place(silent, [silent]) == silent
    assert with_losing_place(silent, [silent], "h2", [queue]).cause == f"On h2: {queue.cause}"


@pytest.mark.parametrize(
    "strange",
    [
        pb.PathProbe(node="h2", address="10.5.2.0", small=YES, full_size=YES, size=1450),
        pb.PathProbe(node="h2", layer=OVERLAY, address="10.5.2.0.1", small=YES, full_size=YES),
        pb.PathProbe(node="h2", layer=OVERLAY, small=YES, full_size=YES),
    ],
)
def test_an_answer_that_does_not_say_of_what_it_is_counts_as_not_tested(strange: pb.PathProbe) -> None:
    (check,) = peer_checks("h1", ("h1", "h2"), [strange])
    assert (check.outcome, check.is_untested) == (PairOutcome.SKIPPED, True)
    assert check.reason == "h1 does not say of what its answer is"
    assert "0 of 1 check passed, 1 not tested" in text(2, [check])


def test_a_subnet_of_pods_that_is_none_counts_as_not_tested() -> None:
    there = {"h1": [], "h2": [pb.OwnPods(subnet="10.5.2.0/33", reason="why")]}
    assert all(each.is_untested for each in pods_without_address("h1", ("h1", "h2"), there))


def test_what_is_not_tested_counts_with_its_reason() -> None:
    here = [pb.OwnPods(subnet="10.5.1.0/24", address="10.5.1.2")]
    there = [pb.OwnPods(subnet="10.5.2.0/24", reason="no pod is known there")]
    own = {"h1": here, "h2": there}
    checks = [*cluster(3, lambda *_: YES, lambda *_: True)]
    checks += [*pods_without_address("h1", ("h1", "h2", "h3"), own)]
    assert [(each.target, each.outcome, each.is_untested) for each in checks[-4:]] == [
        *[("h2", PairOutcome.SKIPPED, True)] * 2,
        *[("h3", PairOutcome.SKIPPED, True)] * 2,
    ]
    shown = text(3, checks)
    assert "?    pod       0 of 4 passed, 4 not tested" in shown
    assert "24 of 28 checks passed, 4 not tested" in shown
    assert "? not tested: h1 to h2, h3 at a pod (IPv4), because no pod is known there; h3" in shown
    there[0].silent = True
    assert {each.outcome for each in pods_without_address("h1", ("h2",), own)} == {PairOutcome.FAILED}


def test_three_nodes_with_faults_and_what_doctor_says() -> None:
    checks = cluster(
        3,
        lambda a, b: YES if (a, b) == ("h1", "h3") else SILENT if "h3" in (a, b) or "h2" in (a, b) else YES,
        lambda a, b: {a, b} != {"h1", "h2"},
    )
    told = Problem(
        "dataplane",
        "No answer comes through the overlay from h2; in the underlay there is one.",
        weight=Weight.WARNING,
        cause="A firewall drops UDP port 8472.",
        nodes=("h1",),
    )
    assert text(3, checks, told)[6:] == [
        "FROM  h1     h2     h3",
        "h1    -      FAIL   0.21",
        "h2    FAIL   -      large",
        "h3    large  large  -",
        "round-trip time in ms; FAIL: not reached; large: full-size packets are lost",
        "",
        "7 of 24 checks failed",
        "* h3 does not reach h1, h2 through the overlay (full-size IPv4)",
        "* h1 does not reach h2 through the overlay (IPv4)",
        "* h2 does not reach h1 through the overlay (IPv4)",
        "* h2 does not reach h3 through the overlay (full-size IPv4)",
        "",
        "What doctor knows about these nodes:",
        "3 nodes: 1 problem",
        "",
        "WARNING  dataplane: No answer comes through the overlay from h2; in the underlay",
        "         there is one.",
        "  nodes      h1",
        "  cause      A firewall drops UDP port 8472.",
    ]


def test_in_a_pipe_each_check_is_a_line_and_doctors_word_follows() -> None:
    told = Problem("dataplane", "The kernel forwards no IPv4 packets.", "sysctl -w net.ipv4.ip_forward=1")
    checks = [check for check in cluster(3, lambda *_: YES, lambda a, _: a != "h2") if check.test == "overlay"]
    shown = report(checks, doctor_text(["h1", "h2", "h3"], [replace(told, nodes=("h2",))], None), None).plain
    first, second = shown.split("\n\n")
    assert [line.split() for line in first.splitlines()][4:7] == [
        ["passed", "overlay", "h1", "h3", "10.5.3.0", "1450", "-", "-"],
        ["failed", "overlay", "h2", "h1", "10.5.1.0", "small", "-", "-"],
        ["passed", "overlay", "h2", "h1", "10.5.1.0", "1450", "-", "-"],
    ]
    assert [re.split("  +", line) for line in second.splitlines()] == [
        ["WEIGHT", "NODE", "SERVICE", "PROBLEM", "CURE", "EVIDENCE"],
        ["WARNING", "h2", "dataplane", told.problem, told.cure, "-"],
    ]


def test_junit_has_a_case_for_each_check_and_doctors_word_in_those_that_failed() -> None:
    silent = Check("overlay", "h\x1b3", "all", "", "", 0, PairOutcome.FAILED, "no\x00 answer from ø")
    checks = [*cluster(3, lambda *_: YES, lambda a, b: (a, b) != ("h1", "h2")), silent]
    xml = junit(checks, lambda check: Text("UDP port 8472 <is> closed.") if check.target == "h2" else None).plain
    assert xml.isascii()  # so that it is right in every locale
    root = ElementTree.fromstring(xml)  # noqa: S314 - we wrote it
    assert root.tag == "testsuites"
    numbers = {"tests": "26", "failures": "2", "errors": "0", "skipped": "1", "time": "0.002310"}
    assert root.attrib == {"name": "flannelette connectivity", **numbers}
    for suite in root:
        cases = suite.findall("testcase")
        assert float(suite.attrib["time"]) == pytest.approx(sum(float(case.attrib["time"]) for case in cases))
        found = [[*case] for case in cases]
        tags = [child.tag for children in found for child in children]
        assert suite.attrib["tests"] == str(len(cases))
        assert (suite.attrib["failures"], suite.attrib["skipped"]) == (
            str(tags.count("failure")),
            str(tags.count("skipped")),
        )
        assert {case.attrib["classname"] for case in cases} <= {f"connectivity.{suite.attrib['name']}"}
    names = [(case.attrib["classname"], case.attrib["name"]) for case in root.iter("testcase")]
    assert len(names) == len({*names}) == 26
    assert names[0] == ("connectivity.overlay", "h1 to h2 (10.5.2.0), small, IPv4")
    assert names[-1] == ("connectivity.outside", "outside")
    failures = [(each.attrib["message"], each.text) for each in root.iter("failure")]
    assert failures == [
        ("no answer", "UDP port 8472 <is> closed."),
        (
            "no\\u0000 answer from ø",
            "doctor knows of no problem of these nodes; what is between them?",
        ),
    ]


def test_of_thirty_nodes_only_what_failed_is_shown() -> None:
    checks = cluster(30, lambda a, b: SILENT if b == "h7" else YES, lambda _, b: b != "h7")
    shown = text(30, checks)
    assert "841 of 870 pairs reach each other in every way" in shown
    assert shown[-5:] == [
        "58 of 3,480 checks failed",
        "* h1, h2, h3, h4, h5, h6, h8, h9, h10, h11 and 19 more do not reach h7 through",
        "    the overlay (IPv4)",
        "",
        "doctor knows of no problem of these nodes; what is between them?",
    ]


def test_what_nobody_has_to_answer_is_skipped_and_what_is_not_carried_has_failed() -> None:
    (small, full) = checks_of("overlay", "h1", "h2", probe(OVERLAY, "h2", small=UNKNOWN, full=UNKNOWN))
    assert (small.outcome, full.outcome) == (PairOutcome.SKIPPED, PairOutcome.SKIPPED)
    refused = pb.PathProbe(layer=OVERLAY, node="h2", address="10.5.2.0/24", small=SILENT, error="another backend")
    assert [(c.outcome, c.reason) for c in checks_of("overlay", "h1", "h2", refused)] == [
        (PairOutcome.FAILED, "another backend")
    ]
    (missing,) = peer_checks("h1", ["h1", "h2"], [])
    assert (missing.target, missing.reason) == ("h2", "h1 knows no lease of h2")


@pytest.mark.parametrize("words", [("-o", "table"), ("-o", "json"), ("-o", "junit")])
def test_where_no_dataplane_answers_the_exit_code_is_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["--socket-dir", str(tmp_path), "connectivity", *words])
    assert done.exit_code == 2
    assert "there is no socket" in done.output


def test_a_silent_peer_is_no_news_where_its_cause_is_known_on_either_side() -> None:
    health = {}
    for number, peers in ((1, ["h2"]), (2, []), (4, ["h2", "h3"])):
        dataplane, masq = clusters.dataplane_of(number, peers=3), samples.masq_status()
        dataplane.status.findings.add(problem=f"No answer of {peers}.", check="peer-tunnel", peers=peers)
        health[f"h{number}"] = assess(Answers(samples.lease_status(""), dataplane, masq), targets(Path("/run"), {}))
    pairs = [(one, other) for one in health for other in health if one != other]
    assert len(problems_of(health, pairs)) == 3
    masq.status.findings.add(problem="UDP port 8472 is dropped.", check="firewall-port", broken=True)
    health["h2"] = assess(replace(health["h2"].answers, masq=masq), targets(Path("/run"), {}))
    assert [each.check for each in problems_of(health, pairs)] == ["firewall-port"]
