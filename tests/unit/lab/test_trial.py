import json
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

import pytest

from lab.kills import Kill, Kills
from lab.options import Options
from lab.pings import Pinger
from lab.reach import Answer
from lab.stream import Lost
from lab.stream import Path as PingPath
from lab.transfer import Transfers
from lab.trial import FiguresUnwritable, Outcome

POD, HOST = IPv4Address("10.5.1.2"), IPv4Address("10.99.0.11")
GOOD = Answer(0.0001, POD, POD)
KILL = Kill("dataplane of h1", at=10.0, back=12.0, changes=0)


def outcome(**changes: Any) -> Outcome:
    parts: dict[str, Any] = {
        "pod_pings": {("h1", "h2"): GOOD, ("h2", "h1"): GOOD},
        "masquerade": {"h1": Answer(0.0001, HOST, HOST)},
        "kills": Kills((KILL,), sent=400, lost=()),
        "ready_seconds": 1.23456,
    }
    return Outcome(**(parts | changes))


def lost(sent: float) -> Lost:
    return Lost(PingPath("h1", "h2", cast("Pinger", None), POD), sent)


def test_a_trial_without_a_fault_is_passed() -> None:
    assert list(outcome().failures()) == []


def test_tcp_that_stands_still_for_more_than_a_second_fails_the_trial() -> None:
    transfers = Transfers([])
    transfers.stall = 1.0
    assert list(outcome(transfers=transfers).failures()) == []
    transfers.stall = 3.14
    assert list(outcome(transfers=transfers).failures()) == ["TCP across the narrow path stood still for 3.1 s"]


def test_a_pod_without_a_reply_fails_the_trial() -> None:
    failed = outcome(pod_pings={("h1", "h2"): Answer(None, None, POD), ("h2", "h1"): GOOD})
    assert list(failed.failures()) == ["the pod of h1 does not reach the pod of h2: no reply"]


def test_a_pod_whose_address_was_translated_on_the_way_fails_the_trial() -> None:
    failed = outcome(pod_pings={("h1", "h2"): Answer(0.0001, HOST, POD)})
    assert list(failed.failures()) == [
        "the pod of h1 does not reach the pod of h2: seen as 10.99.0.11, 10.5.1.2 expected"
    ]


def test_a_ping_to_the_outside_that_was_not_masqueraded_fails_the_trial() -> None:
    failed = outcome(masquerade={"h1": Answer(0.0001, POD, HOST)})
    assert list(failed.failures()) == [
        "the pod of h1 does not reach the outside host: seen as 10.5.1.2, 10.99.0.11 expected"
    ]


def test_a_restart_that_changed_something_in_the_kernel_fails_the_trial() -> None:
    failed = outcome(kills=Kills((replace(KILL, changes=3),), 400, ()))
    assert list(failed.failures()) == [
        "the dataplane of h1 was killed, and 3 kernel objects changed until it was back"
    ]


def test_lost_pings_are_told_with_the_service_that_was_away() -> None:
    failed = outcome(kills=Kills((KILL,), 400, (lost(10.5), lost(11.5), lost(13.0))))
    assert list(failed.failures()) == [
        "2 of the pings were lost while the dataplane of h1 was away (h1→h2)",
        "1 of the pings were lost while every service was there (h1→h2)",
    ]


def test_the_figures_are_written_as_the_issue_lists_them(tmp_path: Path) -> None:
    figures = tmp_path / "lab.json"
    outcome(pod_pings={("h1", "h2"): GOOD, ("h2", "h1"): Answer(None, None, POD)}).write(Options(nodes=2), figures)
    assert json.loads(figures.read_text()) == {
        "nodes": 2,
        "backend": "vxlan",
        "store": "embedded",
        "pod_pings": {"ok": 1, "total": 2},
        "masquerade": {"ok": 1, "total": 1},
        "restart_lost": 0,
        "ready_seconds": 1.235,
    }


def test_figures_that_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FiguresUnwritable) as caught:
        outcome().write(Options(), tmp_path / "missing" / "lab.json")
    assert str(caught.value) == (
        f"cannot write the figures to {tmp_path}/missing/lab.json (No such file or directory): name another file"
    )


def test_one_bad_answer_spoils_the_good_ones_and_the_fastest_good_one_counts() -> None:
    slow, bad = Answer(0.2, POD, POD), Answer(None, None, POD)
    assert slow.joined(GOOD) == GOOD.joined(slow) == GOOD
    assert bad.joined(GOOD) == GOOD.joined(bad) == bad
