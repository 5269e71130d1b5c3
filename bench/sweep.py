"""`python -m bench.sweep`: the benches of docs/performance.md at every size, into docs/performance.json and the page.

`--most N` leaves out the sizes above; `--again` only makes table and plot anew from the stored results.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.page import render

DOCS: Final = Path(__file__).parent.parent / "docs"
SIZES: Final = (100, 1_000, 5_000, 10_000, 50_000)
_MOST_SECONDS: Final = 1_200.0
"""For one bench; the slowest contenders are left out at sizes at which they take minutes."""


def commands(most: int) -> Iterator[list[str]]:
    """What follows `python -m bench`, in order of size, so that a sweep that is ended early has the smaller ones."""
    for peers in (size for size in SIZES if size <= most):
        few = peers <= 10_000
        rounds = {"cold_start": 3, "cold_start_netlink": 5, "burst": 3, "restart": 3}
        for name in ("cold_start_netlink", "cold_start", "event_latency", "burst", "churn", "resync", "restart"):
            options = ["--rounds", str(rounds[name] if few else 2)] if name in rounds else []
            yield [name, "--peers", str(peers), *options]


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a bench failed; then nothing is written."""
    parser = argparse.ArgumentParser("bench.sweep", description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1], help=f"default {SIZES[-1]}")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args(arguments)
    stored = DOCS / "performance.json"
    if not options.again:
        results = []
        for command in commands(options.most):
            began = time.monotonic()
            found = _run(command)
            if found is None:
                return 1
            results.append(found)
            print(
                f"{' '.join(command)}: {found['ours']} {found['unit']} ({time.monotonic() - began:.0f} s)", flush=True
            )
        stored.write_text(_text({"machine": machine(), "results": results}))
    page = DOCS / "performance.md"
    text, plot = render(page.read_text(), json.loads(stored.read_text()))
    page.write_text(text)
    (DOCS / "performance.svg").write_text(plot)
    return 0


def machine() -> str:
    """Its kind: `2 cores, Linux 6.18, Python 3.11`."""
    release = ".".join(platform.release().split(".")[:2])
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{os.cpu_count()} cores, Linux {release}, Python {python}"


def _run(command: Sequence[str]) -> dict[str, Any] | None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *command, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=_MOST_SECONDS,
    )
    found: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
    return found


def _text(stored: dict[str, Any]) -> str:
    """One result a line, so that a diff shows what has changed."""
    lines = ",\n".join(f"  {json.dumps(result)}" for result in stored["results"])
    return f'{{"machine": {json.dumps(stored["machine"])}, "results": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
