"""A process that grows is seen to, and a failure; what the first fault of a kind leaves in it is no growth."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.chaos.options import parse
from lab.chaos.outcome import Outcome
from lab.chaos.resources import MOST_DESCRIPTORS, MOST_MIB, WARM, Growth, Growths
from lab.netns import NetworkNamespace
from lab.programs import Program


def test_what_grows_more_than_it_may_is_a_failure() -> None:
    outcome = Outcome(parse([]), growths=[Growth("masq", "masq of h5", 60.0, MOST_DESCRIPTORS, 0, MOST_MIB)])
    assert list(outcome.all_failures()) == []
    outcome.growths = [Growth("masq", "masq of h5", 60.0, MOST_DESCRIPTORS + 1, 0, MOST_MIB + 1, left=99.0)]
    assert [text.split(" has ")[1].split(";")[0] for text in outcome.all_failures()] == [
        "9 descriptors more after 60 s",
        "25 MiB of memory more after 60 s",
    ]


GROWING = """
import os, sys, threading
kept, wait = [], threading.Event()
print(flush=True)
for line in sys.stdin:
    descriptors, threads, mib = map(int, line.split())
    kept.append(([os.dup(0) for _ in range(descriptors)], b"x" * (mib << 20)))
    for _ in range(threads):
        threading.Thread(target=wait.wait, daemon=True).start()
    print(flush=True)
"""


@dataclass(frozen=True)
class Child:
    """A process that grows by what it is told."""

    process: subprocess.Popen[str]
    program: Program

    @property
    def pid(self) -> int:
        return self.process.pid

    def grow(self, descriptors: int = 0, threads: int = 0, mib: int = 0) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{descriptors} {threads} {mib}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    command = [sys.executable, "-c", GROWING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        yield Child(process, Program("lease", "h5", NetworkNamespace("h5"), (), tmp_path))


def test_a_process_that_is_warm_is_seen_to_grow(child: Child) -> None:
    growths = Growths()
    growths.look([child], 0.0, {})
    child.grow(descriptors=50, threads=3, mib=40)
    growths.look([child], WARM - 0.1, {})
    assert growths.all == []
    growths.look([child], WARM, {})
    child.grow(descriptors=9, threads=10, mib=30)
    growths.look([child], WARM + 60, {})
    (growth,) = growths.all
    assert (growth.service, growth.title) == ("lease", "lease service of h5")
    assert (growth.seconds, growth.descriptors, growth.threads) == (60, 9, 10)
    assert 30 <= growth.mib < 32
    assert len([*growth.excess()]) == 3


JUNK = {"junk-keys": {"lease": 100}}


def test_what_a_fault_leaves_is_no_growth_the_first_time(child: Child) -> None:
    growths = Growths()
    for now in (0.0, WARM):
        growths.look([child], now, {})
    child.grow(mib=80)
    growths.look([child], 30.0, JUNK)
    child.grow(mib=10)
    growths.look([child], 40.0, {})
    (growth,) = growths.all
    assert 80 <= growth.left < 82
    assert 10 <= growth.mib < 12
    assert not [*growth.excess()]
    child.grow(mib=80)
    growths.look([child], 50.0, JUNK)
    growths.look([child], 60.0, {})
    (growth,) = growths.all
    assert 90 <= growth.mib < 92
    assert [*growth.excess()]


def test_what_one_fault_leaves_is_not_counted_for_the_next_one_too(child: Child) -> None:
    growths = Growths()
    for now in (0.0, WARM):
        growths.look([child], now, {})
    child.grow(mib=60)
    growths.look([child], 30.0, JUNK)
    growths.look([child], 40.0, {"lease-churn": {"lease": 50}})
    growths.look([child], 50.0, {})
    (growth,) = growths.all
    assert 60 <= growth.left < 62
    assert growth.mib < 2


@pytest.mark.parametrize(
    ("leaves", "left"), [({"junk-keys": {"lease": 30}}, 30), ({"junk-keys": {"masq": 100}}, 0), ({}, 0)]
)
def test_a_fault_leaves_what_its_row_says_and_in_the_services_it_names(
    leaves: dict[str, dict[str, int]], left: int, child: Child
) -> None:
    growths = Growths()
    for now in (0.0, WARM):
        growths.look([child], now, {})
    child.grow(mib=70)
    growths.look([child], 30.0, leaves)
    growths.look([child], 40.0, {})
    (growth,) = growths.all
    assert growth.left == left
    assert 70 <= growth.mib + left < 72


def test_a_fault_before_a_process_was_there_leaves_nothing_in_it(child: Child) -> None:
    growths = Growths()
    growths.look([child], 0.0, JUNK)
    growths.look([child], WARM, {})
    child.grow(mib=40)
    growths.look([child], 30.0, JUNK)
    growths.look([child], 40.0, {})
    (growth,) = growths.all
    assert 40 <= growth.left < 42
    assert growth.mib < 2
