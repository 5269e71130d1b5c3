"""`python -m bench.sweep`: the benches of docs/performance.md at every size, into docs/performance.json and the page.

`--sizes 100,1000` measures only these, and leaves what is stored of others on the same kind of machine; `--flanneld`
measures only what is beside a real flanneld; `--again` only makes tables and plot anew from what is stored.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.page import Stored, render

DOCS: Final = Path(__file__).parent.parent / "docs"
SIZES: Final = (100, 1_000, 5_000, 10_000, 50_000)
STORED: Final = DOCS / "performance.json"
_MANY: Final = 10_000
"""More peers than these are measured in fewer rounds."""
_MOST_SECONDS: Final = 3_600.0
"""Seconds for one bench; the slowest contenders are left out at sizes at which they take minutes."""


def commands(sizes: Iterable[int]) -> Iterator[list[str]]:
    """What follows `python -m bench`, by size, so that a sweep that is ended early has the smaller ones."""
    for peers in sorted(sizes):
        for name in ("cold_start_netlink", "cold_start", "event_latency", "burst", "churn", "resync", "restart"):
            has_rounds = name not in ("event_latency", "churn", "resync")
            yield [name, "--peers", str(peers), *(["--rounds", "2"] if has_rounds and peers > _MANY else [])]


def beside(rounds: int) -> Iterator[list[str]]:
    """What follows `python -m bench` for the table beside flanneld: everything at 1,000 leases, at the other sizes
    what the table has of them.
    """
    few = ["--samples", "3", "--changes", "1", "--seconds", "1"]
    for peers in (1, 1_000, 5_000, 10_000):
        yield ["flanneld", "--peers", str(peers), "--rounds", str(rounds), *(few if peers != 1_000 else [])]


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a bench failed; what was measured before it is stored."""
    parser = argparse.ArgumentParser("bench.sweep", description=__doc__)
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help=f"default {','.join(map(str, SIZES))}")
    parser.add_argument("--flanneld", type=int, metavar="ROUNDS", help="only beside flanneld, in so many rounds")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args(arguments)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {"machine": machine(), "results": []}
    measured = beside(options.flanneld) if options.flanneld else commands(options.sizes)
    for command in () if options.again else measured:
        began = time.monotonic()
        found = _run(command)
        if found is None:
            return 1
        stored = merged(stored, machine(), found)
        STORED.write_text(_text(stored))
        took = time.monotonic() - began
        print(f"{' '.join(command)}: {found['ours']} {found['unit']} ({took:.0f} s)", flush=True)
    page = DOCS / "performance.md"
    text, plot = render(page.read_text(), stored)
    page.write_text(text)
    (DOCS / "performance.svg").write_text(plot)
    return 0


def merged(stored: Stored, on: str, found: Stored) -> Stored:
    """What is stored with one more result, which replaces the last one of its bench and size."""
    results = stored["results"] if stored["machine"] == on else []
    others = [result for result in results if _place(result) != _place(found)]
    return {"machine": on, "results": sorted([*others, found], key=_place)}


def _place(result: Stored) -> tuple[int, str]:
    return int(result["parameters"]["peers"]), str(result["name"])


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(","))


def machine() -> str:
    """Describes the kind of machine: `2 cores, Linux 6.18, Python 3.11.2 of the system`.

    Whose Python it is matters: compiled without a profile, as version managers do it, it takes a quarter longer.
    """
    release = ".".join(platform.release().split(".")[:2])
    whose = " of the system" if sys.base_prefix == "/usr" else ""
    return f"{os.cpu_count()} cores, Linux {release}, Python {platform.python_version()}{whose}"


def _run(command: Sequence[str]) -> Stored | None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *command, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=_MOST_SECONDS,
    )
    found: Stored | None = json.loads(done.stdout) if done.returncode == 0 else None
    return found


def _text(stored: Stored) -> str:
    """One result a line, so that a diff shows what has changed."""
    lines = ",\n".join(f"  {json.dumps(result)}" for result in stored["results"])
    return f'{{"machine": {json.dumps(stored["machine"])}, "results": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
