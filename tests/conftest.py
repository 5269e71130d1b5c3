"""Runs pytest in private namespaces, and gives tests network namespaces of their own.

The whole run starts again under `unshare`, as root or as an ordinary user, so
tests can do to the kernel's network what they like. Where that is forbidden the
unit and contract tests still run, and those that need it are skipped.
"""

import os
import random
import signal
import sys
import textwrap
from collections import defaultdict
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import private
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kubernetes.api_server import kube, shared_kube
from tests.kubernetes.manifests import kubectl
from tests.modules import require_modules
from tests.tools import CACHE, pending_tools

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["kube", "kubectl", "shared_kube"]  # fixtures: a real kube-apiserver, one for the whole run, and its client

_TESTS = Path(__file__).parent
_NEED_NAMESPACES = tuple(_TESTS / directory for directory in ("kernel", "e2e"))
LONGEST = (
    "e2e/test_benches.py",
    "kernel/cluster/test_hole_06_network_change.py",
    "kernel/cluster/test_hole_11_silent_faults.py",
    "kernel/cluster/test_backend_change.py",
    "kernel/dataplane/test_probes.py",
    "kernel/cluster/test_hole_07_overwritten_keys.py",
    "kernel/dataplane/test_faults.py",
    "kernel/dataplane/test_fault_table.py",
    "kernel/dataplane/test_settings.py",
    "kernel/dataplane/test_vxlan.py",
    "e2e/test_lab.py",
    "kernel/cluster/test_hole_08_mass_removal.py",
    "kernel/masq/test_process.py",
)
"""Files that take half a minute and more and need no tool that has to be built: a worker has a file to itself, and at
the end one would work and the others be done."""
_LONG_FIRST = ("e2e", "kernel", "contract")
"""Directories whose files take long: behind those, they come first."""
_SHORT_FIRST = "FLANNELETTE_TESTS_SHORT_FIRST"
"""Whether short files come before these directories, as while tools are built: they need none that takes minutes."""
_MARK = "FLANNELETTE_TESTS_PRIVATE"
SOAK = os.environ.get("FLANNELETTE_SOAK") == "1"
_WORTH_TELLING = 300
"""Seconds of all tests together, from which on it is said which rooms they went into."""
_WIDTH = 100
_forbidden = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    # Here, for pytest-xdist runs nothing when its processes collect tests of different names.
    os.environ.setdefault("FLANNELETTE_SEED", str(random.randrange(1_000_000)) if SOAK else "1")  # noqa: S311 - dice
    os.environ.setdefault(_SHORT_FIRST, "1" if pending_tools() else "0")
    # A shell's background job ignores Ctrl-C, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(CACHE / "bin")])
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process that a test starts compiles what it imports
    if private.is_private(_MARK) or config.option.markexpr == "compose":  # those live where the docker engine does
        private.find_system_tools()
        if hasattr(config, "workerinput"):  # one of several of pytest-xdist, which must not meet on the loopback
            private.enter_further()
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


def pytest_report_header(config: pytest.Config) -> str:
    seed = f", schedules from seed {os.environ['FLANNELETTE_SEED']}" if SOAK else ""
    return f"namespaces: {config.stash.get(_forbidden, 'private')}{seed}"


def _rank(item: pytest.Item) -> tuple[int, int]:
    path = item.path.relative_to(_TESTS)
    if str(path) in LONGEST:
        return 0, LONGEST.index(str(path))
    rank = _LONG_FIRST.index(path.parts[0]) if path.parts[0] in _LONG_FIRST else len(_LONG_FIRST)
    return 1, -rank if os.environ[_SHORT_FIRST] == "1" else rank


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_rank)
    reason = config.stash.get(_forbidden, "")
    for item in items if reason else ():
        fixtures = getattr(item, "fixturenames", ())
        if "make_netns" in fixtures or any(item.path.is_relative_to(directory) for directory in _NEED_NAMESPACES):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
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
