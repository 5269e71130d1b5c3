"""A certificate that runs out while its connection is open: neither calls nor streams go on with it."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.lease.feed import LeaseConnection
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.contract.tls.test_connections import serving
from tests.contract.tls.test_process import client
from tests.examples.leases import make_request
from tests.patience import PATIENCE
from tests.services.certificates import URIS, Certificates, transport
from tests.services.lease import stub_of
from tests.waiting import contains, eventually

SECONDS = 8


async def test_a_certificate_that_runs_out_acquires_nothing_more_on_its_open_connection(
    tmp_path: Path, lab: Certificates
) -> None:
    async with serving(tmp_path, lab.server()) as service:
        short = lab.make("h1", "h1", uris=(URIS["h1"],), start_days=SECONDS / 86_400 - 10)
        over = time.time() + SECONDS
        async with client(short, service.address) as stub:
            request = request_to_proto(make_request("h1", "172.16.0.1"))
            await stub.AcquireLease(request, timeout=PATIENCE)
            stream = stub.WatchLeases(pb.WatchLeasesRequest(node="h1", view=pb.VIEW_OWN))
            await stream.read()
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await asyncio.wait_for(_to_its_end(stream), PATIENCE)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert over - 2 < time.time() < over + PATIENCE / 2
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.AcquireLease(request, timeout=PATIENCE / 6)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        async with client(lab.client("h2"), service.address) as stub:
            await stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)


async def _to_its_end(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def test_a_client_whose_certificate_was_replaced_connects_with_the_new_one(
    tmp_path: Path, lab: Certificates
) -> None:
    async with serving(tmp_path, lab.server()) as service:
        ours = transport(lab.make("h1", "h1", uris=(URIS["h1"],), start_days=SECONDS / 86_400 - 10))
        over = time.time() + SECONDS
        assert ours.credentials is not None
        connection = LeaseConnection(service.address, "h1", ours)
        lease = await connection.acquire(make_request("h1", "172.16.0.1"))
        lab.client("h1")
        ours.credentials.replace()
        await asyncio.sleep(max(0.0, over - time.time()) + 1)

        request = pb.RenewLeaseRequest(node="h1", name=lease.name)
        with pytest.raises(grpc.aio.AioRpcError, match="has expired: connect with a new one") as refused:
            await connection.stub.RenewLease(request, timeout=PATIENCE)
        await connection.lost(refused.value)  # as the feed does, whose stream has ended with it
        await connection.renew(lease.name)
        await connection.close()


async def test_a_service_whose_authority_runs_out_is_not_ready_and_says_which_and_when(
    tmp_path: Path, lab: Certificates
) -> None:
    clients = Certificates(tmp_path / "clients", start_days=SECONDS / 86_400 - 30)
    over = datetime.now(UTC) + timedelta(seconds=SECONDS)
    files = replace(lab.server(), authorities=clients.files("ca").certificate)
    async with serving(tmp_path, files) as service, stub_of(service.process.address) as stub:
        assert (await stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)).ready
        status = await eventually(
            lambda: stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE), lambda status: not status.ready
        )
        (reason,) = status.reasons
        assert reason.startswith(f"the last authority in {files.authorities} expired on {over:%Y-%m-%d}")


async def test_files_that_cannot_be_used_are_in_the_status_of_a_service(tmp_path: Path, lab: Certificates) -> None:
    files = lab.server()
    async with serving(tmp_path, files) as service:
        files.key.write_text("damaged")
        await eventually(service.metrics, contains("flannelette_tls_files_refused 1.0"))
        assert (
            f'flannelette_tls_authority_expiry_timestamp_seconds{{file="{files.authorities}"}}' in service.metrics()
        )
        async with client(lab.client("h1"), service.address) as stub:
            status = await stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)
        (found,) = [each for each in status.findings if "cannot be used" in each.problem]
        assert (found.check, str(files.key) in found.problem) == ("certificate", True)
