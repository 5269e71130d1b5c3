"""Small simulations, with every fault for a moment: afterwards every node has what etcd has."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lab.simulate.options import FAULTS
from lab.simulate.page import render
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("size", "nodes", "tiers"),
    [("--nodes=40 --tiers=1,2 --churn=4", 40, 2), ("--nodes=3 --tiers=node --churn=2", 3, 1)],
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
