"""A host in a namespace beside a real lease service, for every test that asks for a `cluster`."""

from collections.abc import Iterator

import pytest

from tests.hosts.dataplane import Cluster, cluster_in
from tests.hosts.namespaces import NetworkNamespace


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[Cluster]:
    """Fresh; no node has a lease yet."""
    with cluster_in(netns) as made:
        yield made
