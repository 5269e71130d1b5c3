"""A minute of chaos with a fixed seed: no packet is lost that the table of faults does not allow."""

import json
import os
import subprocess
import sys
from pathlib import Path

from lab.chaos.table import CHANGE
from tests.paths import ROOT


def test_a_minute_of_faults_loses_no_packet_that_the_table_does_not_allow(home: Path) -> None:
    figures = home / "chaos.json"
    options = ("--minutes=1", "--seed=16910", "--backend=vxlan,host-gw", f"--json={figures}")
    command = [sys.executable, "-m", "lab.chaos", *options]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"TMPDIR": str(home)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all is as it should be" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    found = json.loads(figures.read_text())
    assert (found["seed"], found["lost_without_fault"], found["failures"]) == (16910, 0, [])
    assert found["faults"][CHANGE]["lost"] == 0
    assert found["sent"] > 0
    assert not list(home.glob("flannelette-*")), "no directory, and no disk, is left"
