"""docs/metrics.md, docs/troubleshooting.md and the site's pages about gRPC are what the code says."""

import re
from types import ModuleType
from typing import Final

import pytest
from prometheus_client import REGISTRY

import flannelette.services.cloud.writer  # for their metrics
import flannelette.services.dataplane.main
import flannelette.services.lease.main
import flannelette.services.lease.stores.etcd.store
import flannelette.services.masq.main  # noqa: F401 - the same
from flannelette.cloud.v1 import cloud_pb2
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from tests.pages.reference import api, metrics, troubleshooting

_SUFFIX: Final = re.compile(r"_total$")


@pytest.mark.parametrize("page", [metrics, troubleshooting], ids=lambda page: page.PAGE.name)
def test_its_tables_are_what_the_code_says(page: ModuleType) -> None:
    """Others now: `make pages`."""
    assert page.PAGE.read_text() == page.page()


def test_every_metric_that_a_service_shows_is_in_the_page() -> None:
    shown = set(re.findall(r"^\| `(flannelette_\w+)`", metrics.PAGE.read_text(), re.M))
    measured = {family.name for family in REGISTRY.collect() if family.name.startswith("flannelette_")}
    assert measured <= {_SUFFIX.sub("", name) for name in shown}


def test_every_call_message_and_field_of_the_protocols_is_in_the_pages_about_grpc() -> None:
    text = api.pages()
    for module in (lease_pb2, dataplane_pb2, masq_pb2, cloud_pb2):
        name = module.DESCRIPTOR.package.split(".")[1]
        page = text[f"api/{name}.md"]
        file = module.DESCRIPTOR
        calls = {method.name for service in file.services_by_name.values() for method in service.methods}
        headings = set(re.findall(r"^### ([\w.]+)$", page, re.M))
        assert calls | set(file.message_types_by_name) | set(file.enum_types_by_name) <= headings
        fields = {field.name for message in file.message_types_by_name.values() for field in message.fields}
        assert fields <= set(re.findall(r"^`(\w+)` — ", page, re.M))
