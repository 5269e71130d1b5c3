"""Runs pytest in private namespaces, and gives tests network namespaces of their own.

The whole run starts again under `unshare`, as root or as an ordinary user, so
tests can do to the kernel's network what they like. Where that is forbidden the
unit and contract tests still run, and those that need it are skipped.
"""

import fcntl
import gc
import os
import random
import re
import signal
import sys
import textwrap
import time
from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import private
from tests import process_logs, warm
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.modules import require_modules
from tests.tools import CACHE, pending_tools

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

_TESTS = Path(__file__).parent
_NEED_NAMESPACES = tuple(_TESTS / directory for directory in ("kernel", "e2e"))
_WITH_MARKERS = tuple(_TESTS / directory for directory in ("compose", "kube"))
LONGEST = (
    "kernel/cluster/test_silent_faults.py",
    "kernel/cluster/test_firewall_shapes.py",
    "kernel/cluster/test_backend_change.py",
    "e2e/test_benches.py",
    "kernel/cluster/test_network_change.py",
    "e2e/test_chaos.py",
    "kernel/cluster/test_two_networks.py",
    "kernel/dataplane/test_probes.py",
    "kernel/cluster/test_overwritten_keys.py",
    "kernel/dataplane/test_faults.py",
    "kernel/dataplane/test_fault_table.py",
    "kernel/dataplane/test_settings.py",
    "kernel/dataplane/test_vxlan.py",
    "e2e/test_lab.py",
    "kernel/cluster/test_mass_removal.py",
    "kernel/masq/test_process.py",
)
"""Files that take half a minute and more and need no tool that has to be built: a worker has a file to itself, and at
the end one would work and the others be done."""
_QUICK = re.compile(r"tests/(unit|fuzz|contract/(?!kubernetes/|cloud/|etcd/test_beside_flanneld))")
"""The part of a run that comes first: what needs no kernel object and no tool that takes minutes to build."""
_LATER = ("e2e", "contract", "kernel/cluster", "kernel/pages", "kernel")
"""The rest, behind the longest files: directories with long files first, so that short ones end the run."""
_TOOK = "flannelette/took"
"""In pytest's cache: how long the last run took, and its quick part."""
_ELSEWHERE = {"quick": 124.0, "all": 660.0}
"""The same on two cores, for the first run."""
_MARK = "FLANNELETTE_TESTS_PRIVATE"
SOAK = os.environ.get("FLANNELETTE_SOAK") == "1"
_WORTH_TELLING = 300
"""Seconds of all tests together, from which on it is said which rooms they went into."""
_WIDTH = 100
_forbidden = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # Here, for pytest-xdist runs nothing when its processes collect tests of different names.
    os.environ.setdefault("FLANNELETTE_SEED", str(random.randrange(1_000_000)) if SOAK else "1")  # noqa: S311 - dice
    # A shell's background job ignores Ctrl-C, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As Ctrl-C, for `timeout` sends it: else services, and proxies that outlive them, would stay.
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(CACHE / "bin")])
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that a test starts compiles what it imports
    if private.is_private(_MARK) or config.option.markexpr == "compose":  # those live where the docker engine does
        private.find_system_tools()
        if hasattr(config, "workerinput"):  # one of several of pytest-xdist, which must not meet on the loopback
            private.enter_further()
        elif config.getoption("numprocesses", None) and config.pluginmanager.hasplugin("cacheprovider"):
            config.pluginmanager.register(Parts(config))
        if not SOAK:
            warm.install()
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.suspend_global_capture(in_=True)  # else the new program writes into pytest's capture files
    try:
        private.restart(_MARK, [sys.executable, *sys.orig_argv[1:]])
    except private.NamespacesForbidden as error:
        config.stash[_forbidden] = str(error)
        if capture is not None:
            capture.resume_global_capture()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders of which the run takes nothing are not imported."""
    is_left_out = collection_path in _WITH_MARKERS and f"not {collection_path.name}" in config.option.markexpr
    return True if is_left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> "Generator[None, object, object]":
    """Every worker collects every test: as many at a time as there are processors, for all read what one compiles."""
    worker = getattr(session.config, "workerinput", {}).get("workerid", "gw0")
    doors = sorted(path for path in _TESTS.iterdir() if path.is_dir())[: os.cpu_count()]  # any would do: to be locked
    turn = os.open(doors[int(worker.removeprefix("gw")) % len(doors)], os.O_RDONLY)
    fcntl.flock(turn, fcntl.LOCK_EX)
    gc.disable()  # a third of the time, for what is collected stays
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        os.close(turn)


def pytest_report_header(config: pytest.Config) -> str:
    seed = f", schedules from seed {os.environ['FLANNELETTE_SEED']}" if SOAK else ""
    return f"namespaces: {config.stash.get(_forbidden, 'private')}{seed}"


def _rank(item: pytest.Item) -> tuple[int, int]:
    path = item.path.relative_to(_TESTS)
    if _QUICK.match(f"tests/{path}"):
        return 0, 0
    if str(path) in LONGEST:
        return 1, LONGEST.index(str(path))
    return 2, next((at for at, prefix in enumerate(_LATER) if path.is_relative_to(prefix)), len(_LATER))


class Parts:
    """Says what a run of several workers will take, and how its quick part went as soon as that is over."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started = time.monotonic()
        self._quick = 0
        self._left = set[str]()
        self._failed = list[str]()

    def pytest_xdist_node_collection_finished(self, ids: "Sequence[str]") -> None:
        """Once: every worker has the same tests."""
        quick = {test for test in ids if _QUICK.match(test)}
        if self._quick or len(quick) in (0, len(ids)):
            return
        self._left, self._quick = quick, len(quick)
        took: dict[str, float] = self._config.cache.get(_TOOK, _ELSEWHERE)
        where = "on two cores" if took == _ELSEWHERE else "the last time"
        built = {path.name for path in (*(CACHE / "bin").glob("*"), *CACHE.glob("*"))}
        tools = ", ".join(sorted(pending_tools() - built))
        rest = f"{len(ids) - len(quick):,} with kernels and clusters"
        self._say(f"{len(quick):,} quick tests (unit, fuzz, contract) come first: {_minutes(took['quick'])} {where}.")
        self._say(f"Then {rest}: {_minutes(took['all'])} {where}, all in all.")
        if tools:
            self._say(f"Tests wait for tools that are built meanwhile, once, in minutes: {tools}.")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each worker's tests; `???`: the worker is gone."""
        if report.nodeid not in self._left:
            return
        if report.failed:
            self._failed.append(report.nodeid)
        if report.when in ("teardown", "???"):
            self._left.remove(report.nodeid)
            if not self._left:
                self._note("quick")
                self._say(f"quick part: {len(self._failed)} of {self._quick:,} failed{':' if self._failed else ''}")
                for test in self._failed:
                    self._say(f"    {test}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keeps how long the whole run took."""
        if self._quick and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._note("all")

    def _note(self, part: str) -> None:
        took: dict[str, float] = self._config.cache.get(_TOOK, _ELSEWHERE)
        self._config.cache.set(_TOOK, took | {part: time.monotonic() - self._started})

    def _say(self, line: str) -> None:
        terminal: pytest.TerminalReporter = self._config.pluginmanager.getplugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(line)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_rank)
    reason = config.stash.get(_forbidden, "")
    for item in items if reason else ():
        fixtures = getattr(item, "fixturenames", ())
        if "make_netns" in fixtures or any(item.path.is_relative_to(directory) for directory in _NEED_NAMESPACES):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    process_logs.forget_ended()
    require_modules(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long each room took, with all of its set-up, in seconds of one worker: the times of tests/README.md."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds["/".join(Path(report.nodeid.partition("::")[0]).parts[1:3])] += report.duration
    if sum(seconds.values()) > _WORTH_TELLING:
        terminalreporter.section("seconds by room")
        rows = sorted(seconds.items(), key=itemgetter(1), reverse=True)
        words = "  ".join(f"{room}={took:.0f}" for room, took in rows)
        terminalreporter.write_line(textwrap.fill(words, _WIDTH, break_on_hyphens=False, break_long_words=False))


@pytest.fixture
def make_netns() -> "Iterator[NamespaceMaker]":
    """Makes fresh network namespaces: `host = make_netns()`; see NamespaceMaker."""
    maker = NamespaceMaker()
    yield maker
    maker.close()


@pytest.fixture
def netns(make_netns: NamespaceMaker) -> NetworkNamespace:
    """A fresh network namespace, loopback up."""
    return make_netns()
