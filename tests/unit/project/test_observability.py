"""deploy/observability: everything that the rules and the dashboard ask for exists, and each alert goes off."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any, Final

import click
import promql_parser
import pytest
import yaml
from prometheus_client import REGISTRY

import flannelette.services.dataplane.main  # for their metrics
import flannelette.services.lease.main
import flannelette.services.lease.stores.etcd.store
import flannelette.services.masq.main  # noqa: F401 - the same
from flannelette.services.ctl.main import cli
from flannelette.services.dataplane.events import NumberCollector
from tests.paths import ROOT
from tests.tools import find_tool

PACKAGE: Final = ROOT / "deploy/observability"
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((PACKAGE / "rules.yaml").read_text())["groups"][0]["rules"]
DASHBOARD: Final[dict[str, Any]] = json.loads((PACKAGE / "dashboard.json").read_text())
PANELS: Final[list[dict[str, Any]]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS: Final = [
    *((rule["alert"], rule["expr"]) for rule in RULES),
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
]
SCRAPED: Final = {"job", "instance"}


def metrics() -> dict[str, set[str]]:
    """The labels of every series that the services show, by name."""
    found: dict[str, set[str]] = {
        "flannelette_peers": {"state"},
        "flannelette_findings": {"check"},
        "flannelette_probed_peers": {"answer"},
        "flannelette_up": {"service"},  # of `flannelette flanneld`, which adds it to the text of each service
    }
    for collector in [*REGISTRY._collector_to_names]:  # it has no public list
        labels = set(getattr(collector, "_labelnames", ()))
        for family in getattr(collector, "describe", collector.collect)():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            for suffix in suffixes:
                found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


METRICS: Final = metrics()
UNASKED: Final = {
    # of a process that few clusters have: its own readiness and status tell the same
    "flannelette_cloud_changes_total",
    "flannelette_cloud_errors_total",
    "flannelette_cloud_last_look_timestamp_seconds",
    "flannelette_cloud_routes",
    "flannelette_connections_closed_total",  # the log names the address that has too many
    "flannelette_callers_cut_off_total",  # the log names the certificate that calls too often
    "flannelette_handshakes_closed_total",  # the log names the addresses that nobody calls from
    "flannelette_etcd_sessions",  # for debugging; the nodes connected say the same
    "flannelette_lease_history_bytes",
    "flannelette_lease_history_steps",
    "flannelette_lease_message_bytes_total",
    "flannelette_lease_messages_total",
    "flannelette_lease_guarded_removals_total",
    "flannelette_lease_held_changes_total",  # doctor names the node that changes too often
    "flannelette_masq_check_failures_total",
}


def selectors(node: Any) -> Iterator[Any]:
    """Every series that an expression asks for."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for part in ("lhs", "rhs", "expr", "args", "vector_selector"):
        inner = getattr(node, part, None)
        for each in inner if isinstance(inner, list) else [inner] if inner is not None else []:
            yield from selectors(each)


def parsed(expression: str) -> Any:
    return promql_parser.parse(expression.replace("$__rate_interval", "5m"))


def test_numbers_by_a_label_are_a_metric() -> None:
    (family,) = NumberCollector("flannelette_findings", "", ["check"], lambda: {("peer-route",): 2}).collect()
    (sample,) = family.samples
    assert (family.name, sample.labels, sample.value) == ("flannelette_findings", {"check": "peer-route"}, 2)


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_every_series_and_label_that_is_asked_for_exists(name: str, expression: str) -> None:
    asked = list(selectors(parsed(expression)))
    assert asked
    for selector in asked:
        assert selector.name in METRICS
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= METRICS[selector.name] | SCRAPED


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_the_matter_and_which_command_tells_more(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    summary, description = rule["annotations"]["summary"], rule["annotations"]["description"]
    assert summary.endswith(".")
    known = {label for selector in selectors(parsed(rule["expr"])) for label in METRICS[selector.name]} | SCRAPED
    assert set(re.findall(r"\$labels\.(\w+)", summary + description)) <= known
    commands = re.findall(r"`flannelette ([a-z-]+)((?: [^`]+)?)`", description)
    assert commands or "log" in description or "restart" in description
    for name, words in commands:
        command = cli.commands[name]
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", words)) <= options
        assert isinstance(command, click.Command)


def test_every_metric_of_ours_is_looked_at() -> None:
    asked = {selector.name for _, expression in EXPRESSIONS for selector in selectors(parsed(expression))}
    ours = {name for name in METRICS if name.startswith("flannelette_") and not name.endswith(("_sum", "_count"))}
    assert ours - asked - UNASKED == set()


def test_no_panel_lies_on_another_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(panel["description"].endswith(".") for panel in PANELS)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_prometheus_takes_the_rules_and_every_alert_goes_off() -> None:
    """With the series of tests/observability/rules_test.yaml, and none without them."""
    cases = ROOT / "tests/observability/rules_test.yaml"
    done = subprocess.run(
        [find_tool("promtool"), "test", "rules", str(cases)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tested = re.findall(r'alertname="(\w+)"', cases.read_text())
    assert sorted(tested) == sorted(rule["alert"] for rule in RULES)
