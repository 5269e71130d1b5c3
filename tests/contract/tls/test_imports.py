"""Imports over TLS between clusters with different authorities: another cluster sees what is exported, no more."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.leases.table import Upserted
from tests.examples.leases import make_request
from tests.ports import free_port
from tests.services.certificates import Certificates, flags, transport
from tests.services.clusters import EAST, WEST, Cluster
from tests.services.lease import next_step
from tests.services.tiers import acquired

ALLOW = "allow=10.6.0.0/16"


@asynccontextmanager
async def clusters(directory: Path) -> AsyncIterator[tuple[Cluster, str, Certificates]]:
    """East, which has not started; the address of west, which has a lease; and the authority of west."""
    east, west, theirs = (
        Cluster(directory, "east", EAST),
        Cluster(directory, "west", WEST),
        Certificates(directory / "w"),
    )
    address = f"127.0.0.1:{free_port()}"
    west.start(f"--listen=unix:{west.directory}/lease.sock,{address}", *flags(theirs.server()))
    try:
        await acquired(west.running, make_request("h1", "172.16.1.1"))
        yield east, address, theirs
    finally:
        west.stop()
        east.stop()


async def test_leases_are_imported_with_a_certificate_of_the_other_clusters_authority(tmp_path: Path) -> None:
    ours = Certificates(tmp_path / "e")
    async with clusters(tmp_path) as (east, address, theirs):
        files = theirs.client("cluster")
        named = f"cert={files.certificate},key={files.key},ca={files.authorities}"
        east.start(f"--import=west={address},{ALLOW},{named}", *flags(ours.server()))
        state = await east.until_imported(lambda each: each.leases == 1)
        assert state.connected


async def test_a_wrong_authority_is_told_and_the_own_cluster_is_served(tmp_path: Path) -> None:
    ours = Certificates(tmp_path / "e")
    async with clusters(tmp_path) as (east, address, _):
        east.start(f"--import=west={address},{ALLOW}", *flags(ours.server()))
        await acquired(east.running, make_request("h1", "172.16.0.1"))
        state = await east.until_imported(lambda each: "authorit" in each.error)
        assert (state.connected, state.leases) == (False, 0)


async def test_another_cluster_sees_what_is_exported_and_no_more(tmp_path: Path) -> None:
    async with (
        clusters(tmp_path) as (_, address, theirs),
        transport(theirs.client("cluster")).channel(address) as channel,
    ):
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        stream = stub.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_EXPORTED))
        step = await next_step(stream)
        assert [change.lease.node for change in step.changes if isinstance(change, Upserted)] == ["h1"]
        for call in (stub.ListLeases(pb.ListLeasesRequest()), stub.WatchLeases(pb.WatchLeasesRequest()).read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "VIEW_EXPORTED" in (caught.value.details() or "")
        stream.cancel()
