"""What people do to a lab that is up, beside looking: it stays, and says what it sees."""

import os
import signal
from pathlib import Path

from tests.e2e.lab_process import LabProcess, lab


def kill(process: LabProcess, *words: str) -> None:
    """Kills the process with all of these words on its command line."""
    found = [pid for pid, line in process.processes().items() if all(word in line for word in words)]
    assert len(found) == 1, process.processes()
    os.kill(found[0], signal.SIGKILL)


def test_a_lab_outlives_its_etcd_and_tells_of_each_death_at_once(home: Path) -> None:
    with lab(home, "NODES=1", "STORE=etcd") as process:
        process.until_printed("Ctrl-C ends the lab")
        kill(process, "--data-dir")
        kill(process, "flannelette.services.dataplane.main")
        process.until_printed("the etcd died (SIGKILL), restart number 1 follows")
        process.until_printed("the dataplane of h1 died (SIGKILL), restart number 1 follows")
        process.until_printed("the etcd is ready again")
        process.until_printed("the dataplane of h1 is ready again")

        assert process.exit_code(signal.SIGHUP) == 0  # its terminal was closed
        assert process.all_gone()
        assert not process.directory.exists()
