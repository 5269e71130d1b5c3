"""The metrics of the three services as one exposition that Prometheus reads."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from flannelette.services.flanneld.separate import collect, merge
from flannelette.services.flanneld.together import owner_of
from tests.paths import ROOT

LEASE = """\
# HELP ready 1 when ready
# TYPE ready gauge
ready 1.0
# HELP seconds Time
# TYPE seconds histogram
seconds_bucket{le="0.1"} 2.0
seconds_bucket{le="+Inf"} 3.0
seconds_count 3.0
seconds_sum 0.5
"""
MASQ = """\
# HELP findings By check
# TYPE findings gauge
findings{check="a } b\\", \\n{"} 2.0
# HELP ready in other words
# TYPE ready gauge
ready 0.0
"""


def test_a_family_of_two_services_is_there_once_with_a_label_for_each() -> None:
    text = merge({"lease": LEASE, "masq": MASQ})
    assert (
        text
        == """\
# HELP ready 1 when ready
# TYPE ready gauge
ready{service="lease"} 1.0
ready{service="masq"} 0.0
# HELP seconds Time
# TYPE seconds histogram
seconds_bucket{service="lease",le="0.1"} 2.0
seconds_bucket{service="lease",le="+Inf"} 3.0
seconds_count{service="lease"} 3.0
seconds_sum{service="lease"} 0.5
# HELP findings By check
# TYPE findings gauge
findings{service="masq",check="a } b\\", \\n{"} 2.0
"""
    )
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["findings"].samples[0].labels == {"service": "masq", "check": 'a } b", \n{'}


async def test_a_service_that_is_gone_is_not_up(tmp_path: Path) -> None:
    _, text = await collect({"lease": tmp_path / "lease.http"})
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert [(sample.labels, sample.value) for sample in families["flannelette_up"].samples] == [
        ({"service": "lease"}, 0.0)
    ]


def test_in_one_process_each_family_is_that_of_the_service_whose_code_declares_it() -> None:
    declared = {
        (name, path.relative_to(ROOT / "services").parts[0])
        for path in (ROOT / "services").rglob("*.py")
        for name in re.findall(r'\b(?:Gauge|Counter|Histogram|NumberCollector)\(\s*"(\w+)"', path.read_text())
    }
    owners = {
        (name, "flanneld" if place == "runtime" else place)
        for name, place in declared
        if place not in ("cloud", "flanneld") and name != "flannelette_ready"  # of which each has one
    }
    assert {(name, owner_of(name)) for name, _ in owners} == owners
