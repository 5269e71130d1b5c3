"""What `make test` says of its quick part: what it will take, and how it went, before the rest has run."""

from types import SimpleNamespace
from typing import Any

from tests.conftest import Parts

UNIT, CONTRACT, CLOUD, KERNEL = (
    "tests/unit/core/test_table.py::a",
    "tests/contract/lease/test_watch.py::b",
    "tests/contract/cloud/test_process.py::c",
    "tests/kernel/masq/test_process.py::d",
)


def run(*reports: tuple[str, str, bool]) -> tuple[list[str], dict[str, Any]]:
    """What is said in a run of these tests, of which these reports come in; pytest's cache then."""
    said, cache = list[str](), dict[str, Any]()
    terminal = SimpleNamespace(ensure_newline=lambda: None, write_line=said.append)
    kept = SimpleNamespace(get=cache.get, set=cache.__setitem__)
    plugins = SimpleNamespace(getplugin=lambda _: terminal)
    parts: Any = Parts(SimpleNamespace(cache=kept, pluginmanager=plugins))  # type: ignore[arg-type]  # its seams
    for _ in ("worker 1", "worker 2"):
        parts.pytest_xdist_node_collection_finished([UNIT, CONTRACT, CLOUD, KERNEL])
    for test, when, failed in reports:
        parts.pytest_runtest_logreport(SimpleNamespace(nodeid=test, when=when, failed=failed))
    return [line for line in said if "tools" not in line], cache


def test_a_run_says_once_what_it_has_and_how_long_that_takes() -> None:
    assert run()[0] == [
        "2 quick tests (unit, fuzz, contract) come first: 2 min on two cores.",
        "Then 2 with kernels and clusters: 11 min on two cores, all in all.",
    ]


def test_failures_of_the_quick_part_are_told_when_it_is_over() -> None:
    said, cache = run((UNIT, "call", True), (UNIT, "teardown", False), (KERNEL, "teardown", False))
    assert len(said) == 2, "one is left"
    said, cache = run((UNIT, "call", True), (UNIT, "teardown", False), (CONTRACT, "???", True), (CLOUD, "call", True))
    assert said[2:] == ["quick part: 2 of 2 failed:", f"    {UNIT}", f"    {CONTRACT}"]
    assert cache["flannelette/took"].keys() == {"quick", "all"}
    said, cache = run((UNIT, "teardown", False), (CONTRACT, "teardown", False))
    assert said[2:] == ["quick part: 0 of 2 failed"]
