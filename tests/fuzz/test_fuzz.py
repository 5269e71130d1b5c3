"""Every target: what is in its corpus, and changes of it: two thousand here, a million with FLANNELETTE_SOAK=1.

What fails is written to a file, whose name the failure says; it belongs into the corpus as `found-...`.
"""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.fuzz.limits import cpu_limit, memory_limit, quiet
from tests.fuzz.mutation import cases
from tests.fuzz.table import CORPUS, SHAPES, TARGETS, corpus
from tests.fuzz.targets.calls.request import methods, request_in
from tests.paths import ROOT

COUNT: Final = 500
MANY: Final = 1_000_000
SOAK: Final = os.environ.get("FLANNELETTE_SOAK") == "1"


@pytest.mark.parametrize("name", TARGETS)
def test_every_case_of_the_corpus_does_what_it_may(name: str) -> None:
    with quiet():
        for path in corpus(name):
            with cpu_limit():
                TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_no_change_of_the_corpus_crashes_a_parser_or_reaches_beyond_its_object(name: str, tmp_path: Path) -> None:
    if SOAK:
        subprocess.run(
            [sys.executable, "-m", "tests.fuzz", f"--target={name}", f"--runs={MANY}"], check=True, cwd=ROOT
        )
        return
    seeds = [path.read_bytes() for path in corpus(name)]
    dice = Random(f"{name} {os.environ['FLANNELETTE_SEED']}")  # noqa: S311 - dice
    last = tmp_path / name
    with quiet(), memory_limit():
        for case in islice(cases(seeds, dice, SHAPES.get(name)), COUNT):
            try:
                with cpu_limit():
                    TARGETS[name](case)
            except Exception as error:
                last.write_bytes(case)
                raise AssertionError(f"{name} fails with {last}: {case!r:.500}") from error


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == TARGETS.keys()
    assert all(map(corpus, TARGETS))


@pytest.mark.parametrize("service", ["lease", "dataplane", "masq", "cloud"])
def test_every_call_of_a_service_has_a_seed(service: str) -> None:
    seeds = [path.read_bytes() for path in corpus(f"{service}_calls")]
    read = {request[0] for seed in seeds if (request := request_in(service, seed)) is not None}
    named = {seed.partition(b"\n")[0].decode() for seed in seeds}
    assert methods(service).keys() - (read & named) == set()


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for name in TARGETS for path in corpus(name)) < 200_000
