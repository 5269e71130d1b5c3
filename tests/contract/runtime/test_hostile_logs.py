"""Text from outside in log lines: a name from a store forges none, in either format."""

import json
import os
import subprocess
import sys

import pytest

from flannelette.services.core.formats.text import is_visible
from tests.patience import PATIENCE

SAY = """
import sys
from flannelette.services.runtime.telemetry.logs import configure_logs, get_logger

configure_logs("tiny", sys.argv[1], 0)
log = get_logger()
more = sys.stdin.buffer.read().decode()
log.warning(f"no lease for {more}", node=more, nodes=[more, "h2"], by_name={more: more})
try:
    raise OSError(f"cannot read {more}")
except OSError:
    log.exception("not read")
"""
HOSTILE = "h1\n2026-11-27T05:00:00Z [info     ] ready\r\u2028forged\u202e\x1b[2J\x85\x00\u200b"


def said(form: str, more: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", SAY, form],
        input=more.encode(),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True,
        check=True,
        timeout=PATIENCE,
    )
    return ran.stderr.decode().split("\n")[:-1]


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_name_forges_no_line_of_the_log(form: str) -> None:
    lines = said(form, HOSTILE)
    assert not {each for line in lines for each in line if not is_visible(each)}
    if form == "json":
        assert [json.loads(line)["event"] for line in lines] == [f"no lease for {HOSTILE}", "not read"]
        return
    begun = [line for line in lines if not line.startswith("    ")]
    assert len(begun) == 2, "the lines of a traceback are indented, its last ones too"
    assert r"no lease for h1\n2026" in begun[0]
