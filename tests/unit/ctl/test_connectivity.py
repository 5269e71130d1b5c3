"""What `flannelette connectivity` prints on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import pytest
from click.testing import CliRunner
from flannelette.dataplane.v1 import dataplane_pb2 as pb

from services.ctl.diagnose.checks import Check, Outcome, checks_of, peer_checks
from services.ctl.diagnose.connectivity_text import report
from services.ctl.main import cli
from services.ctl.problems import Problem, Weight
from services.ctl.render.problems import doctor_text

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
    return [*checks, Check("outside", "", "", "", "", 0, Outcome.SKIPPED, reason)]


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
    assert (small.outcome, full.outcome) == (Outcome.SKIPPED, Outcome.SKIPPED)
    refused = pb.PathProbe(layer=OVERLAY, node="h2", address="10.5.2.0/24", small=SILENT, error="another backend")
    assert [(c.outcome, c.reason) for c in checks_of("overlay", "h1", "h2", refused)] == [
        (Outcome.FAILED, "another backend")
    ]
    (missing,) = peer_checks("h1", ["h1", "h2"], [])
    assert (missing.target, missing.reason) == ("h2", "h1 knows no lease of h2")


@pytest.mark.parametrize("words", [(), ("-o", "json")])
def test_where_no_dataplane_answers_the_exit_code_is_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, ["--socket-dir", str(tmp_path), *words, "connectivity"])
    assert done.exit_code == 2
    assert "there is no socket" in done.output
