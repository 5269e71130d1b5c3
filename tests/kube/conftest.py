"""The cluster, which tests use in turn and leave whole; one that is not is replaced by a new one."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from lab.kubernetes import guest, parts, policy
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.node import run
from lab.kubernetes.options import Options
from lab.vm import is_guest
from tests.kube.flood import FIGURES
from tests.kube.workloads import state_of
from tests.shared import Shared, sharing

Clusters = Shared[Options, Cluster]


@asynccontextmanager
async def _running(options: Options) -> AsyncIterator[Cluster]:
    cluster = Cluster(options)
    FIGURES.clusters += 1
    try:
        await cluster.build()
        await cluster.boot(await cluster.import_images())
        await cluster.join()
        await (cluster.install_flannel() if options.flannel else cluster.install())
        if options.policy:
            await policy.install(cluster, options)
        await cluster.start_pods()
        yield cluster
    finally:
        cluster.stop()
        for name in (
            "outside",
            *(node.name for node in cluster.nodes),
            "underlay",
        ):  # a namespace is slow to go
            await run("ip", "link", "delete", name)
        await run("ip", "-all", "netns", "delete")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def clusters() -> AsyncIterator[Clusters]:
    if os.geteuid():
        pytest.skip("kubelets need root")
    missing = [part.title for part in parts.all_parts() if not part.is_there]
    if missing:
        pytest.skip(f"make kube-test builds {', '.join(missing)}")
    if is_guest():
        guest.bring_images()
    with parts.locked():
        async with sharing(_running, lambda cluster: asyncio.run(state_of(cluster))) as shared:
            yield shared


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(request: pytest.FixtureRequest, clusters: Clusters) -> AsyncIterator[Cluster]:
    """As `parametrize("cluster", ..., indirect=True)` says, or three nodes with the overlay per-node, in a VM one."""
    usual = Options(nodes=1) if is_guest() else Options()
    async with clusters.borrowed(getattr(request, "param", usual)) as borrowed:
        yield borrowed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES.pings:
        terminalreporter.section("kube-test")
        terminalreporter.write_line(str(FIGURES))
