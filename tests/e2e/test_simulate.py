"""Small simulations, with every fault for a moment: afterwards every node has what etcd has."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lab.simulate.options import FAULTS
from lab.simulate.page import render
from tests.e2e.lab_process import HEEDS_HANG_UP
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.waiting import eventually_sync, has


@pytest.mark.parametrize(
    ("size", "nodes", "tiers"),
    [("--nodes=40 --tiers=1,2 --churn=4", 40, 2), ("--nodes=3 --tiers=node --churn=20", 3, 1)],
    ids=["relays", "a lease service for each node"],
)
def test_after_every_fault_every_table_and_every_kernel_is_what_etcd_has(
    size: str, nodes: int, tiers: int, tmp_path: Path
) -> None:
    figures, drawn = tmp_path / "figures.json", tmp_path / "plot.svg"
    short = (*size.split(), "--crowds=1", "--minutes=0.05", "--away=0.5")
    command = [sys.executable, "-m", "lab.simulate", *short, f"--json={figures}", f"--svg={drawn}"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No table and no kernel differed from etcd." in ran.stdout
    found = json.loads(figures.read_text())
    assert [act["name"] for act in found["acts"]] == ["start", "churn", *FAULTS]
    for act in found["acts"]:
        leases, kernels = nodes + 1, nodes
        assert (act["differences"], act["leases"], act["kernels"]) == ([], leases, kernels), "nodes, and the marker"
    assert [tier["tier"] for tier in found["tiers"]] == ["etcd", *(f"tier {n}" for n in range(tiers)), "nodes"]
    assert all(tier["cpu_seconds"] > 0 and tier["peak_mib"] > 0 for tier in found["tiers"])
    assert all(tier["messages"] > 0 and tier["bytes"] > 0 for tier in found["tiers"][1:])
    assert ET.fromstring(drawn.read_text()).findtext("{http://www.w3.org/2000/svg}title")  # noqa: S314 - made here
    page = "".join(f"<!-- {table} -->\n<!-- end of {table} -->\n" for table in ("acts", "tiers", "predictions"))
    assert f"`make simulate NODES={nodes} ARGS=" in render(page, {**found, "machine": "this one"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("reached", ["simulate-*", "simulate-*/lease-0-0.log", "simulate-*/figures"])
def test_a_signal_to_the_whole_group_ends_it_without_a_traceback_and_leaves_nothing(
    number: signal.Signals, reached: str, tmp_path: Path
) -> None:
    """At its start, while its services start, and after the first act; again while it ends, as a supervisor does."""
    words = ("--nodes=40", "--tiers=1,2", "--churn=4", "--minutes=5", f"--json={tmp_path}/figures")
    log = tmp_path / "log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*HEEDS_HANG_UP, sys.executable, "-m", "lab.simulate", *words],
            stdout=said,
            stderr=said,
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 3 * PATIENCE  # etcd, three lease services and 40 nodes start first
        while not list(tmp_path.glob("figures" if "figures" in reached else reached)):
            assert time.monotonic() < deadline, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.001)
        for _ in range(2):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            time.sleep(0.02)
        assert process.wait(PATIENCE) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in log.read_text()
    assert list(tmp_path.glob("simulate-*")) == []
    eventually_sync(lambda: running(f"{tmp_path}/simulate-"), has(0))


def running(words: str) -> list[str]:
    """The command lines of processes that have these words."""
    found = list[str]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ends meanwhile
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if words in line]
