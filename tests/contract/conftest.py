"""What every contract test may ask for: servers, real and played, stores on them, and what is beside them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import lab
from tests.contract.kube_faults import api, scripted
from tests.contract.worlds import world
from tests.ctl_fakes import FakeNode
from tests.embedded_stores import config
from tests.etcd import etcd, make_etcd, own_etcd, pytest_runtest_makereport
from tests.etcd_prefix import prefix
from tests.flanneld_network import network
from tests.kernel.clusters import cluster
from tests.kube_stores import opened

__all__ = [
    "api",
    "cluster",
    "config",
    "etcd",
    "lab",
    "make_etcd",
    "network",
    "node",
    "opened",
    "own_etcd",
    "prefix",
    "pytest_runtest_makereport",
    "scripted",
    "world",
]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    """Three services that answer as the test says."""
    fake = FakeNode(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()
