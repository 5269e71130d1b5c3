"""A run of tests that is ended from outside cleans up what its tests have started."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.waiting import eventually_exists

TEST = """
import signal
from pathlib import Path
import pytest

@pytest.fixture
def service():
    yield
    Path("ended").touch()

def test_it(service):
    Path("started").touch()
    while True:
        signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
async def test_what_a_test_has_started_ends_with_an_interrupted_run(tmp_path: Path, number: signal.Signals) -> None:
    """`timeout` sends SIGTERM; nobody would end a proxy of backend udp, which outlives its dataplane."""
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    command = (sys.executable, "-m", "pytest", "-q", f"--rootdir={tmp_path}", "test_it.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=STDOUT
    )
    try:
        await eventually_exists(tmp_path / "started")
        process.send_signal(number)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert (tmp_path / "ended").exists(), said.decode()
