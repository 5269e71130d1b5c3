"""The expositions of the three services as one that Prometheus reads."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from flannelette.services.flanneld.main import collect, merge

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
