"""A small simulation: 40 nodes, one relay tier, every fault for a moment; afterwards every node has what etcd has."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from lab.simulate.options import FAULTS
from tests.paths import ROOT


def test_after_every_fault_every_table_and_every_kernel_is_what_etcd_has(tmp_path: Path) -> None:
    figures, drawn = tmp_path / "figures.json", tmp_path / "plot.svg"
    size = ("--nodes=40", "--minutes=0.05", "--churn=4", "--tiers=1,2", "--crowds=1", "--away=0.5")
    command = [sys.executable, "-m", "lab.simulate", *size, f"--json={figures}", f"--svg={drawn}"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "No table and no kernel differed from the store." in ran.stdout
    found = json.loads(figures.read_text())
    assert [act["name"] for act in found["acts"]] == ["start", "churn", *FAULTS]
    for act in found["acts"]:
        assert (act["differences"], act["leases"], act["kernels"]) == ([], 41, 40), "the nodes, and the marker"
    assert [tier["tier"] for tier in found["tiers"]] == ["etcd", "tier 0", "tier 1", "nodes"]
    assert all(tier["cpu_seconds"] > 0 and tier["peak_mib"] > 0 for tier in found["tiers"])
    assert ET.fromstring(drawn.read_text()).findtext("{http://www.w3.org/2000/svg}title")  # noqa: S314 - made here
