"""A minute of chaos: no packet is lost that the table of faults does not allow. FLANNELETTE_SEED has other faults."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lab.chaos.run import INTERVAL
from lab.chaos.scene import HOSTS, SERVICES
from lab.chaos.table import CHANGE
from tests.paths import ROOT

FIRST = 10_842
"""With FLANNELETTE_SEED=1, which `make test` has, a minute sees many faults."""
PATHS = HOSTS * (HOSTS - 1) + HOSTS
"""To each other pod, and to the outside."""


def test_a_minute_of_faults_loses_no_packet_that_the_table_does_not_allow(home: Path) -> None:
    seed, figures = FIRST + int(os.environ["FLANNELETTE_SEED"]), home / "chaos.json"
    options = ("--minutes=1", f"--seed={seed}", "--backend=vxlan,host-gw", f"--json={figures}")
    command = [sys.executable, "-m", "lab.chaos", *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"TMPDIR": str(home)})
    said = f"FLANNELETTE_SEED={seed - FIRST}\n{ran.stdout}{ran.stderr}"
    assert ran.returncode == 0, said
    assert "every kernel is as desired" in ran.stdout, said
    assert max(map(len, ran.stdout.splitlines())) <= 80
    found = json.loads(figures.read_text())
    assert (found["seed"], found["lost_without_fault"], found["failures"]) == (seed, 0, [])
    assert found["faults"][CHANGE]["lost"] == 0
    assert found["sent"] >= PATHS * found["seconds"] / INTERVAL / 2, said
    kinds = {(each["service"], each["title"].rpartition(" ")[2]) for each in found["growth"]}
    assert kinds == {(name, f"h{number}") for name in SERVICES for number in range(1, HOSTS + 1)}, said
    assert not list(home.glob("flannelette-*")), "no directory, and no disk, is left"
