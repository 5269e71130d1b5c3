"""`make fuzz`: bytes into the targets, guided by coverage with atheris, by chance without."""

import argparse
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final

from tests.paths import ROOT

FOUND: Final = ROOT / ".build/fuzz"
"""What was found here before: cases that reached something new, and those that failed."""
_SLOWEST: Final = 30
"""Seconds of one case, with every branch of it counted."""
_MEBIBYTES: Final = 1500
_LARGEST: Final = 4096
"""Bytes of a case."""
_DULL: Final = re.compile(
    r"\s(NEW|REDUCE|pulse|RELOAD)\s|^(WARNING|INFO):|^Dictionary:|^##|^\"|^$|# Uses: |^stat::new|^MS: "
)
_DONE: Final = re.compile(r"#(\d+)\s+DONE\s+cov: (\d+).* exec/s: (\d+)")


def main() -> int:
    """The exit code: 1 if a target has failed, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="make fuzz", usage=argparse.SUPPRESS, description=__doc__)
    parser.add_argument(
        "--target", action="append", default=[], help="may be repeated. Default: all, one after another"
    )
    parser.add_argument(
        "--seconds", type=int, default=0, help="for each target. Default: 60, or with --runs no limit"
    )
    parser.add_argument("--runs", type=int, default=0, help="cases for each target. Default: no limit")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if min(asked.seconds, asked.runs) < 0:
        parser.error("SECONDS and RUNS are numbers of 0 or more; 0 is the default")
    seconds = asked.seconds or (0 if asked.runs else 60)
    if asked.inside:
        _guided(asked.target[0], seconds, asked.runs)
        return 0
    from tests.fuzz.table import TARGETS

    if unknown := [name for name in asked.target if name not in TARGETS]:
        print(f"there is no target {unknown[0]!r}: TARGET is one of {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    FOUND.mkdir(parents=True, exist_ok=True)
    is_guided = find_spec("atheris") is not None
    if not is_guided:
        print("atheris is not installed (pip install --editable '.[fuzz]'): cases by chance", flush=True)
    run = _supervised if is_guided else _by_chance
    failed = [name for name in asked.target or TARGETS if not run(name, seconds, asked.runs)]
    return 1 if failed else 0


def _supervised(name: str, seconds: int, runs: int) -> bool:
    """In a process of its own, which libFuzzer ends. Whether nothing was found."""
    command = [sys.executable, "-m", "tests.fuzz", "--inside", f"--target={name}"]
    command += [f"--seconds={seconds}", f"--runs={runs}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            if done := _DONE.search(line):
                speed = f", {done[3]} a second" if int(done[3]) else ""  # libFuzzer says 0 of less than a second
                print(f"{name}: {int(done[1]):,} cases{speed}, {done[2]} branches reached", flush=True)
            elif not (_DULL.search(line) or line.startswith(("#", "Done "))) or process.poll():
                print(line, end="", flush=True)
    return process.returncode == 0


def _guided(name: str, seconds: int, runs: int) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["flannelette.services"], enable_loader_override=False):
        from tests.fuzz.limits import quiet
        from tests.fuzz.messages import changed
        from tests.fuzz.mutation import book
        from tests.fuzz.table import CORPUS, SHAPES, TARGETS, corpus
    own, words = FOUND / name, FOUND / f"{name}.words"
    own.mkdir(exist_ok=True)
    known = book([path.read_bytes() for path in corpus(name)])
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in known))
    limits = [f"-max_total_time={seconds}"] if seconds else []
    limits += [f"-runs={runs}"] if runs else []
    limits += [f"-rss_limit_mb={_MEBIBYTES}", f"-timeout={_SLOWEST}", f"-max_len={_LARGEST}"]
    options = [f"-dict={words}", f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=0"]
    shaped = SHAPES.get(name)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        """Half of the cases of a message are still messages."""
        dice = Random(seed)  # noqa: S311 - dice
        case = changed(data, shaped, dice, known) if shaped is not None and dice.random() < 0.5 else None
        return case if case is not None and len(case) <= most else bytes(atheris.Mutate(data, most))

    more = {"custom_mutator": mutate} if shaped is not None else {}
    with quiet():
        atheris.Setup([name, *limits, *options, str(own), str(CORPUS / name)], TARGETS[name], **more)
        atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in word)


def _by_chance(name: str, seconds: int, runs: int) -> bool:
    from tests.fuzz.limits import cpu_limit, quiet
    from tests.fuzz.mutation import cases
    from tests.fuzz.table import SHAPES, TARGETS, corpus

    seed = os.environ.get("FLANNELETTE_SEED") or str(time.time_ns())
    start, count = time.monotonic(), 0
    with quiet():
        seeds, dice = [path.read_bytes() for path in corpus(name)], Random(seed)  # noqa: S311 - dice
        for case in cases(seeds, dice, SHAPES.get(name)):
            if (runs and count >= runs) or (seconds and time.monotonic() - start > seconds):
                break
            try:
                with cpu_limit():
                    TARGETS[name](case)
            except Exception:
                failed = Path(f"{FOUND}/{name}-crash")
                failed.write_bytes(case)
                print(f"{name}: case {count} of seed {seed} fails; it is in {failed}", file=sys.stderr)
                sys.excepthook(*sys.exc_info())
                return False
            count += 1
    print(f"{name}: {count:,} cases, {count / (time.monotonic() - start):.0f} a second", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
