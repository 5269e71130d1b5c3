"""What every contract test may ask for: servers, real and played, stores on them, and what is beside them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clouds.aws import ec2, vpc
from tests.ctl.fakes import FakeNode
from tests.etcd.prefix import prefix
from tests.etcd.server import etcd, make_etcd, own_etcd, pytest_runtest_makereport
from tests.etcd.sessions import sessions
from tests.flannel.network import network
from tests.hosts.cluster import cluster
from tests.kubernetes.api_server import kube, shared_kube
from tests.kubernetes.manifests import kubectl
from tests.kubernetes.played_store import api, scripted
from tests.kubernetes.stores import opened
from tests.services.certificates import lab
from tests.stores.embedded import config
from tests.stores.every import world

__all__ = [
    "api",
    "cluster",
    "config",
    "ec2",
    "etcd",
    "kube",
    "kubectl",
    "lab",
    "make_etcd",
    "network",
    "node",
    "opened",
    "own_etcd",
    "prefix",
    "pytest_runtest_makereport",
    "scripted",
    "sessions",
    "shared_kube",
    "vpc",
    "world",
]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[FakeNode]:
    """Three services that answer as the test says."""
    fake = FakeNode(tmp_path)
    await fake.start()
    yield fake
    await fake.stop()
