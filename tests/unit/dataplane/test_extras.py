"""The dataplane where its packages are not installed."""

import subprocess
import sys


def test_it_names_its_extra() -> None:
    code = "import sys; sys.modules['pyroute2'] = None; from flannelette.services.dataplane.main import main; main()"
    command = [sys.executable, "-c", code, "--socket-dir=/nonexistent"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "flannelette-dataplane needs the package pyroute2: pip install 'flannelette[dataplane]'\n"
