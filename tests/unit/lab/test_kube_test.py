import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.patience import PATIENCE


def test_where_its_parts_were_never_built_ci_leaves_kube_test_out_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.kube", "--if-built"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("CACHE", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 125
    assert done.stdout.startswith("kube-test is skipped: programs, ")
    assert done.stdout.endswith("are not built yet; make kube-test builds them\n")
    assert "\n" not in done.stdout.strip()
