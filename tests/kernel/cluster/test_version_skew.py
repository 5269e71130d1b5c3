"""Services of this release beside ones of the last: what only this release knows is lost between them, and all works.

`tests/services/last_release.py` stands between them. Where a release removes or renumbers something, `buf breaking`
says so first.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from tests.ctl import process as ctl_process
from tests.hosts.dataplane import Cluster, cluster_in
from tests.hosts.namespaces import NetworkNamespace
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.services.last_release import RELEASED, last_release_before, released

MAC: Final = "ea:1c:bd:03:3e:64"


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_in(netns) as it:
        yield it


@pytest.mark.parametrize("release", sorted(RELEASED.glob("*.binpb")), ids=lambda path: path.stem)
def test_nothing_of_a_release_was_removed_or_renumbered(release: Path) -> None:
    if shutil.which("buf") is None:
        pytest.skip("buf is not on the PATH: make lint fetches it where there is npm")
    done = subprocess.run(
        ["buf", "breaking", "proto", "--against", str(release)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_last_release_has_all_services() -> None:
    assert {path.rpartition("/")[0] for path in released()} == {
        f"/flannelette.{name}.v1.{name.title()}Service" for name in ("lease", "dataplane", "masq", "cloud")
    }


async def test_a_dataplane_follows_a_lease_service_of_another_release(
    cluster: Cluster,
) -> None:
    old = f"unix:{cluster.directory}/old.sock"
    async with last_release_before(cluster.leases.address, old):
        first = await cluster.join("n2", "10.99.0.12", MAC)
        async with cluster.dataplane(f"--lease-address={old}") as running:
            await running.until(peers=1)
            second = await cluster.join("n3", "10.99.0.13", "ea:1c:bd:03:3e:65")
            await running.until(peers=2)
            await cluster.leave("n2", first)
            await running.until(peers=1)
            assert [peer.name for peer in await running.peers()] == [second]
            async with cluster.calls() as stub:
                nodes = await stub.ListNodes(lease_pb2.ListNodesRequest(), timeout=PATIENCE)
            assert [node.name for node in nodes.nodes if node.connected] == ["n1"]


async def test_a_client_of_the_last_release_sees_the_leases_that_there_are(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", MAC)
    old = f"unix:{cluster.directory}/old.sock"
    async with last_release_before(cluster.leases.address, old), grpc.aio.insecure_channel(old) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        listed = await stub.ListLeases(lease_pb2.ListLeasesRequest(), timeout=PATIENCE)
        assert [lease.node for lease in listed.leases] == ["n2"]
        watched: list[str] = []
        async for response in stub.WatchLeases(lease_pb2.WatchLeasesRequest(node="n9"), timeout=PATIENCE):
            watched += [change.upserted.node for change in response.changes]
            if response.synced:
                break
        assert watched == ["n2"]


async def test_the_command_line_of_one_release_shows_the_services_of_another(cluster: Cluster) -> None:
    await cluster.join("n2", "10.99.0.12", MAC)
    old_lease, old_dataplane = f"unix:{cluster.directory}/old-lease.sock", f"unix:{cluster.directory}/old.sock"
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        address = f"unix:{cluster.directory}/dataplane.sock"
        async with (
            last_release_before(cluster.leases.address, old_lease),
            last_release_before(address, old_dataplane),
        ):
            where = (f"--lease={old_lease}", f"--dataplane={old_dataplane}")
            for command, shown in (("leases", "n2"), ("peers", "n2"), ("nodes", "n1"), ("status", "n1 is")):
                ran = await ctl_process.run(cluster.directory, *where, command)
                assert shown in ran.out, ran
                assert "Traceback" not in ran.err
