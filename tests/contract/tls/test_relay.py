"""Tiers over TLS: a relay speaks for the nodes whose certificates it has seen, and for nobody else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.runtime.lease.wire import request_to_proto
from flannelette.services.runtime.tls import TlsFiles
from tests.examples.leases import SMALL_JSON, make_request
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.certificates import LOOPBACK, URIS, Certificates, flags, transport
from tests.services.lease import ServiceProcess, stub_of

REQUEST = request_to_proto(make_request("h1", "172.16.0.1", "10.5.27.0/24"))


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@asynccontextmanager
async def service(directory: Path, files: TlsFiles, *arguments: str) -> AsyncIterator[tuple[ServiceProcess, str]]:
    address = f"127.0.0.1:{free_port()}"
    listen = f"--listen=unix:{directory}/lease.sock,{address}"
    with ServiceProcess(made(directory), listen, *flags(files), *arguments) as process:
        async with stub_of(process.address):
            yield process, address


@asynccontextmanager
async def top(directory: Path, lab: Certificates) -> AsyncIterator[str]:
    config = directory / "net.json"
    config.write_text(SMALL_JSON)
    store = (f"--net-config-path={config}", "--store-file=memory")
    async with service(directory / "top", lab.server(), *store) as (_, address):
        yield address


@asynccontextmanager
async def client(files: TlsFiles, address: str) -> AsyncIterator[lease_pb2_grpc.LeaseServiceStub]:
    async with transport(files).channel(address) as channel:
        yield lease_pb2_grpc.LeaseServiceStub(channel)


async def test_a_relay_acts_for_the_node_that_has_shown_its_certificate(tmp_path: Path, lab: Certificates) -> None:
    relay = lab.make("rack7-server", "rack7", uris=(URIS["relay"],), addresses=LOOPBACK)
    reservation = pb.ReserveSubnetRequest(cidrs=["10.5.9.0/24"])
    async with (
        top(tmp_path, lab) as above,
        service(tmp_path / "relay", relay, "--store=relay", "--central", f"--upstream={above}") as (_, below),
        client(lab.client("h1"), below) as h1,
        client(lab.client("h2"), below) as h2,
        client(lab.client("admin"), below) as admin,
        client(lab.client("admin"), above) as admin_above,
    ):
        lease = (await h1.AcquireLease(REQUEST, timeout=PATIENCE)).lease
        with pytest.raises(grpc.aio.AioRpcError, match="only the dataplane of node h1 may do this for it"):
            await h2.AcquireLease(REQUEST)
        assert [known.node for known in (await admin_above.ListLeases(pb.ListLeasesRequest())).leases] == ["h1"]
        with pytest.raises(grpc.aio.AioRpcError, match="flannelette://admin/NAME; this is flannelette://relay/rack7"):
            await admin.ReserveSubnet(reservation)
        await admin_above.ReserveSubnet(reservation)
        await h1.ReleaseLease(pb.ReleaseLeaseRequest(node="h1", name=lease.name))


async def test_a_node_is_no_relay(tmp_path: Path, lab: Certificates) -> None:
    node = lab.make("h2", "h2", uris=(URIS["h2"],), addresses=LOOPBACK)
    async with (
        top(tmp_path, lab) as above,
        service(tmp_path / "no-relay", node, "--store=relay", "--central", f"--upstream={above}") as (process, _),
        stub_of(process.address) as operator,
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="AcquireLease: only the dataplane of node h1 may do this"):
            await operator.AcquireLease(REQUEST)
