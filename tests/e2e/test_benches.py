"""Every bench runs, with counts that are too small to measure anything."""

import json
import subprocess
import sys
from typing import Final

import pytest

from bench.__main__ import BENCHES
from tests.patience import PATIENCE

TINY: Final = {
    "calls": 20,
    "changes": 3,
    "connections": 100,
    "delay": 1,
    "leases": 20,
    "nodes": 20,
    "notice": 1,
    "parallel": 3,
    "peers": 20,
    "rate": 20,
    "rounds": 1,
    "rules": 20,
    "samples": 3,
    "seconds": 1,
    "services": 1,
    "settle": 1,
    "tables": 2,
    "watchers": 3,
}
"""By parameter, of whichever bench."""


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_runs_and_compares_us_with_a_peer(name: str) -> None:
    parameters = [f"--{parameter}={TINY[parameter]}" for parameter in BENCHES[name].parameters]
    command = [sys.executable, "-m", "bench", name, *parameters, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5 * PATIENCE)
    if "this kernel has no " in done.stderr or " is not installed" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ours"] > 0
    assert result["peers"]
