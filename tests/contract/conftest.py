"""What every contract test may ask for: a real etcd, a host beside a lease service, a node that a test plays."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.worlds import world
from tests.ctl_fakes import FakeNode
from tests.etcd import etcd, make_etcd, own_etcd, pytest_runtest_makereport
from tests.kernel.clusters import cluster

__all__ = ["cluster", "etcd", "make_etcd", "node", "own_etcd", "pytest_runtest_makereport", "world"]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    """Three services that answer as the test says."""
    fake = FakeNode(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()
