"""A seed is a schedule; a packet is lost to a fault that allows it, or is a failure."""

import json
import subprocess
import sys
import time
from base64 import b64encode
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from lab.chaos.clock import OFFSET
from lab.chaos.kernel import actual, leases_in, look, wanted
from lab.chaos.main import main
from lab.chaos.options import parse
from lab.chaos.outcome import MARGIN, Happened, Outcome, blamed
from lab.chaos.page import PAGE, STORED, largest, render
from lab.chaos.resources import Growth
from lab.chaos.run import schedule
from lab.chaos.scene import HOSTS, Hit
from lab.chaos.table import CHANGE, FAULTS, Loses
from lab.stream import Lost
from lab.stream import Path as PingPath
from lab.topology import Host

ALL = tuple(name for name in FAULTS if name != CHANGE)
NODES = tuple(Host(number) for number in range(1, HOSTS + 1))


def planned(seed: str, rounds: int = 200) -> list[list[tuple[str, Hit]]]:
    return list(islice(schedule(seed, ALL, NODES, "vxlan", is_full=True), rounds))


def shown(seed: str) -> list[tuple[str, Host, Host, float]]:
    return [(name, hit.host, hit.peer, hit.seconds) for together in planned(seed) for name, hit in together]


def test_a_seed_gives_the_same_faults_at_the_same_hosts_again() -> None:
    assert shown("7") == shown("7")
    assert shown("7") != shown("8")


def test_each_fault_happens_once_before_one_happens_twice() -> None:
    names = [name for name, *_ in shown("3")]
    for start in range(0, len(names) - len(ALL), len(ALL)):
        assert sorted(names[start : start + len(ALL)]) == sorted(ALL)


def test_two_at_once_are_on_two_hosts_and_what_all_hosts_feel_is_alone() -> None:
    pairs = [together for together in planned("5") if len(together) == 2]
    assert pairs
    for (name, first), (other, second) in pairs:
        assert first.host != second.host
        assert not FAULTS[name].is_alone
        assert not FAULTS[other].is_alone
    assert FAULTS["etcd-killed"].is_alone
    assert FAULTS["xtables-lock"].is_alone


def test_the_services_of_the_last_host_are_never_ended() -> None:
    ended = {host for name, host, *_ in shown("6") if FAULTS[name].ends_services}
    assert ended == {*NODES[:-1]}


def test_certificates_expire_where_there_are_some() -> None:
    expired = {host for name, host, *_ in shown("6") if FAULTS[name].needs_tls}
    assert expired == {NODES[0], NODES[2]}


def test_the_lock_of_iptables_is_held_where_masq_takes_it() -> None:
    assert {host for name, host, *_ in shown("6") if name == "xtables-lock"} == {NODES[1], NODES[3]}


def test_the_table_of_the_page_is_the_one_that_happens_with_the_figures_that_were_kept() -> None:
    found = json.loads(STORED.read_text())
    assert render(PAGE.read_text(), found) == PAGE.read_text(), "python -m lab.chaos.page"
    assert (found["failures"], found["lost_without_fault"]) == ([], 0)
    kept = {name for name, figures in found["faults"].items() if FAULTS[name].loses is Loses.NOTHING}
    assert {found["faults"][name]["lost"] for name in kept} == {0}


def test_the_page_has_what_has_grown_and_what_was_seen_if_the_figures_have_it() -> None:
    found = json.loads(STORED.read_text())
    figures = {name: {**each, "seen": each["times"]} for name, each in found["faults"].items() if FAULTS[name].shows}
    grown = [Growth("lease", "lease service of h1", 600.0, 1, 0, -4.0, 9.0), Growth("lease", "", 60.0, 0, 2, 7.04)]
    found |= {"faults": found["faults"] | figures, "growth": largest([asdict(growth) for growth in grown])}
    page = render(PAGE.read_text(), found)
    assert "| lease | 2 | 10 min | +1 | +2 | +7 MiB | 9 MiB |\n" in page
    times = found["faults"]["no-descriptors"]["times"]
    assert f"| no-descriptors | a connection has no answer | {times} of {times} |\n" in page
    del found["growth"]
    assert "left by faults" not in render(page, {**found, "growth": {}})


HIT = Hit(NODES[0], NODES[1], 0.0, Random(1), is_full=False, backend="vxlan")  # noqa: S311 - no secret


def happened(name: str, began: float = 100.0, right: float = 110.0) -> Happened:
    return Happened(name, HIT, began, "vxlan", undone=began, right=right)


def lost(source: str, target: str, sent: float) -> Lost:
    return Lost(PingPath(source, target, None, None), sent)  # type: ignore[arg-type]  # nobody pings


@pytest.mark.parametrize(
    ("loses", "paths"),
    [
        (Loses.NOTHING, set()),
        (Loses.PEER, {("h1", "h2"), ("h2", "h1")}),
        (Loses.HOST, {("h1", "h2"), ("h2", "h1"), ("h1", "h3"), ("h3", "h1"), ("h1", "outside")}),
    ],
)
def test_a_fault_allows_its_paths_alone(loses: Loses, paths: set[tuple[str, str]]) -> None:
    some = [(a, b) for a in ("h1", "h2", "h3") for b in ("h1", "h2", "h3", "outside") if a != b]
    fault = next(fault for fault in FAULTS.values() if fault.loses is loses)
    assert {path for path in some if fault.allows(HIT, *path)} == paths


def test_a_packet_that_no_fault_allows_is_a_failure_and_is_named() -> None:
    outcome = Outcome(parse(["--seed=1"]), each=[happened("device-deleted"), happened("masq-killed", 200.0, 203.0)])
    allowed = [lost("h1", "h3", 100.0), lost("h3", "h1", 110.0 + MARGIN)]
    outcome.lost = allowed
    assert list(outcome.all_failures()) == []
    outcome.lost = [
        *allowed,
        lost("h3", "h1", 110.1 + MARGIN),
        lost("h3", "h4", 105.0),
        lost("h1", "h2", 202.0),
        lost("h1", "h2", 202.5),
    ]
    assert list(outcome.all_failures()) == [
        "1 packets lost h3→h1 during no fault, which does not allow it",
        "1 packets lost h3→h4 during device-deleted at h1, which does not allow it",
        "2 packets lost h1→h2 during masq-killed at h1, which does not allow it",
    ]


def test_of_two_faults_the_one_that_allows_a_packet_is_blamed_for_it() -> None:
    each = [happened("masq-killed"), happened("routes-flushed")]
    assert blamed(each, lost("h1", "h4", 105.0)) is each[1]
    assert blamed(each, lost("h3", "h4", 105.0)) is each[0]
    assert blamed(each, lost("h3", "h4", 99.0 - MARGIN)) is None


def test_a_run_says_what_runs_it_again() -> None:
    assert parse(["--minutes=60", "--seed=9"]).command == "make chaos MINUTES=60 SEED=9 BACKEND=vxlan,host-gw"
    some = parse(["--seed=9", "--backend=vxlan", "--faults=device-down,masq-killed"])
    assert some.command == "make chaos MINUTES=5 SEED=9 BACKEND=vxlan ARGS='--faults device-down,masq-killed'"
    assert parse([]).seed != parse([]).seed or parse([]).seed != parse([]).seed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--minutes=0"], "use more than 0, and a week at most"),
        (["--backend=udp"], "use vxlan or host-gw, or both with a comma between"),
        (["--faults=nothing"], "`make chaos ARGS=--list` prints all"),
        (["--faults=device-down"], "none of --faults can happen with host-gw: name one more"),
        (["--seed=abc"], "--seed: 'abc' is not a whole number"),
        (["--json=/run/x.json"], "--json=/run/x.json: the lab has a /run of its own"),
        (["--keep=/dev/null"], "--keep=/dev/null cannot be made (File exists): name another directory"),
        (["--json=/nowhere/figures.json"], "there is no directory /nowhere"),
    ],
)
def test_a_wrong_command_line_is_told(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert (said.startswith("chaos: "), says in said, said.count("\n")) == (True, True, 1)


def test_the_clock_of_a_program_is_the_machine_s_and_what_the_file_says(tmp_path: Path) -> None:
    offset, module = tmp_path / "clock", tmp_path / "told.py"
    module.write_text("import sys, time\nprint(sys.argv[1:], time.time())\n")
    offset.write_bytes(OFFSET.pack(86_400.0))
    command = [sys.executable, "-m", "lab.chaos.clock", str(offset), "told", "--a", "b"]
    before = time.time()
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": f"{tmp_path}:."})
    words, _, told = said.stdout.strip().rpartition(" ")
    assert words == "['--a', 'b']"
    assert before + 86_400 <= float(told) <= time.time() + 86_400


def stored(*leases: tuple[str, str]) -> dict[str, object]:
    pairs = [
        {"key": b64encode(key.encode()).decode(), "value": b64encode(value.encode()).decode()}
        for key, value in leases
    ]
    return {"kvs": pairs}


def test_leases_are_read_and_what_is_none_is_not() -> None:
    vxlan = '{"PublicIP":"10.99.0.12","BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:02"}}'
    host_gw = '{"PublicIP":"10.99.0.13","BackendType":"host-gw"}'
    junk = (("/n/subnets/10.5.4.0-24", "{"), ("/n/subnets/junk", host_gw), ("/n/subnets/10.5.5.0-24", "null"))
    found = leases_in(stored(("/n/subnets/10.5.2.0-24", vxlan), ("/n/subnets/10.5.3.0-24", host_gw), *junk))
    first, second = found.values()
    assert [*wanted(second, [first])] == [
        "route 10.5.2.0/24 via 10.5.2.0 dev flannel.1",
        "neighbour 10.5.2.0 lladdr 02:00:00:00:00:02 dev flannel.1",
        "fdb 02:00:00:00:00:02 dst 10.99.0.12 dev flannel.1",
    ]
    assert [*wanted(first, [second])] == [
        "device flannel.1 02:00:00:00:00:02 10.5.2.0/32 up",
        "route 10.5.3.0/24 via 10.99.0.13 dev eth0",
    ]


def test_a_kernel_without_anything_and_its_firewall_are_read() -> None:
    rules = "*nat\n:PREROUTING ACCEPT [0:0]\n:FLANNEL-POSTRTG - [0:0]\n-A POSTROUTING -j FLANNEL-POSTRTG\nCOMMIT\n"
    script = f"""
        ip() {{ echo '[ ]'; }}; bridge() {{ echo '[]'; }}; iptables-save() {{ printf '{rules!r}'; }}
    """.replace("'''", "'").replace("''", "'")
    said = subprocess.run(["bash", "-c", script + look("iptables")], capture_output=True, text=True, check=True)
    objects, found = actual(said.stdout)
    assert objects == frozenset()
    assert found == {"nat :FLANNEL-POSTRTG -", "nat POSTROUTING 1: POSTROUTING -j FLANNEL-POSTRTG"}
