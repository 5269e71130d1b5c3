"""Log lines as a process writes them: no field is a Python literal.

Regression tests of hole 20.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab.private import own_namespaces
from tests.patience import PATIENCE

SAY = """
from enum import Enum
from ipaddress import IPv4Network
from flannelette.services.runtime.telemetry.logs import configure_logs, get_logger

class Cause(Enum):
    GONE = "gone"
    def __str__(self): return self.value

configure_logs("tiny", "{form}", 0)
log = get_logger()
log.warning("here it is", causes=(Cause.GONE, "changed"), subnets=[IPv4Network("10.5.1.0/24")], nothing=None, some=[],
            one=Cause.GONE, counts={{"put": 2, "deleted": 0}}, names={{"b", "a"}}, number=3, share=0.5, word="h1")
try:
    raise OSError("broken")
except OSError:
    log.exception("with a traceback")
"""


def said(form: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", SAY.format(form=form)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return ran.stderr.splitlines()


def test_the_fields_of_a_line_are_text_that_a_person_reads() -> None:
    line, *rest = said("text")
    fields = "causes='gone, changed' counts='put=2, deleted=0' names='a, b' number=3 one=gone service=tiny share=0.5"
    assert line.endswith(f"here it is {fields} some= subnets=10.5.1.0/24 word=h1")
    assert "with a traceback" in rest[0]
    assert rest[-1] == "    OSError: broken"


def test_a_line_of_json_keeps_lists_and_has_text_for_objects() -> None:
    line: dict[str, Any] = json.loads(said("json")[0])
    assert line.pop("timestamp")
    assert line == {
        "event": "here it is",
        "level": "warning",
        "service": "tiny",
        "causes": ["gone", "changed"],
        "subnets": ["10.5.1.0/24"],
        "nothing": None,
        "some": [],
        "one": "gone",
        "counts": {"put": 2, "deleted": 0},
        "names": ["a", "b"],
        "number": 3,
        "share": 0.5,
        "word": "h1",
    }


def test_a_service_that_is_not_ready_says_why_in_plain_words(tmp_path: Path) -> None:
    """In namespaces of its own, where it finds no lease service."""
    flags = ("--node=h1", f"--socket-dir={tmp_path}", "--state-dir=")
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *own_namespaces(),
                sys.executable,
                "-m",
                "flannelette.services.dataplane.main",
                *flags,
            ],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
            stderr=output,
        )
    try:
        end = time.monotonic() + PATIENCE
        while not (lines := [line for line in log.read_text().splitlines() if " not ready " in line]):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait(PATIENCE)
    fields = lines[0].partition(" not ready ")[2]
    assert fields.startswith("reasons='the first complete snapshot of leases is not programmed yet, no answer on")
    assert "[" not in fields
