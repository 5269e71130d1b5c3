"""A lease service over TLS, as a process: who gets a connection, new certificates, why it does not start."""

import asyncio
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.runtime.lease.wire import request_to_proto
from flannelette.services.runtime.tls import TlsFiles
from tests.examples.leases import SMALL_JSON, make_request
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.certificates import Certificates, flags, transport
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import contains, eventually

Stub = lease_pb2_grpc.LeaseServiceStub


@pytest.fixture
def others(tmp_path: Path) -> Certificates:
    """Of an authority that the service does not know."""
    return Certificates(tmp_path / "others")


class Serving:
    """A lease service on a unix socket and, with TLS, on a port of loopback."""

    def __init__(self, directory: Path, process: ServiceProcess, port: int, http: int) -> None:
        self.directory = directory
        self.process = process
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._http = http

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http}/metrics", timeout=PATIENCE) as response:
            lines = response.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


@asynccontextmanager
async def serving(directory: Path, files: TlsFiles) -> AsyncIterator[Serving]:
    port, http = free_port(), free_port()
    arguments = [f"--listen=unix:{directory}/lease.sock,127.0.0.1:{port}", f"--healthz-port={http}", *flags(files)]
    with ServiceProcess(directory, *embedded(directory), *arguments) as process:
        async with stub_of(process.address):
            pass
        yield Serving(directory, process, port, http)


def embedded(directory: Path) -> list[str]:
    config = directory / "net.json"
    config.write_text(SMALL_JSON)
    return [f"--net-config-path={config}", "--store-file=memory"]


@asynccontextmanager
async def client(files: TlsFiles, address: str) -> AsyncIterator[Stub]:
    async with transport(files).channel(address) as channel:
        yield Stub(channel)


async def is_served(files: TlsFiles, address: str) -> bool:
    """Whether there is a connection; a new one every time."""
    async with client(files, address) as stub:
        try:
            await stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - anything else is a failure
            return False
    return True


async def test_a_node_gets_its_lease_and_nobody_else_takes_it(tmp_path: Path, lab: Certificates) -> None:
    request = request_to_proto(make_request("h1", "172.16.0.1"))
    async with serving(tmp_path, lab.server()) as service:
        async with client(lab.client("h1"), service.address) as h1, client(lab.client("h2"), service.address) as h2:
            lease = (await h1.AcquireLease(request)).lease
            assert lease.node == "h1"
            assert (await h2.ListLeases(pb.ListLeasesRequest())).leases == [lease]
            for call in (
                h2.AcquireLease(request),
                h2.RenewLease(pb.RenewLeaseRequest(node="h1", name=lease.name)),
                h2.ReleaseLease(pb.ReleaseLeaseRequest(node="h1", name=lease.name)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                assert "flannelette://node/h1/dataplane; this is flannelette://node/h2/dataplane" in str(caught.value)
            with pytest.raises(grpc.aio.AioRpcError, match="node h2 does not hold lease"):
                await h2.RenewLease(pb.RenewLeaseRequest(node="h2", name=lease.name))
            await h2.ReleaseLease(pb.ReleaseLeaseRequest(node="h2", name=lease.name))
            assert (await h1.RenewLease(pb.RenewLeaseRequest(node="h1", name=lease.name))).lease.name == lease.name
        assert service.metric('flannelette_calls_refused_total{method="AcquireLease"}') == 1
        async with client(lab.client("admin"), service.address) as admin:
            third = next(number for number in (9, 10) if lease.name != f"10.5.{number}.0-24")  # h1 has one by chance
            await admin.ReserveSubnet(pb.ReserveSubnetRequest(cidrs=[f"10.5.{third}.0/24"]))
        assert "an administrator calls method=ReserveSubnet" in service.log
        async with stub_of(service.process.address) as operator:
            await operator.ReleaseLease(pb.ReleaseLeaseRequest(node="h1", name=lease.name))
            listed = await operator.ListLeases(pb.ListLeasesRequest())
            assert [known.name for known in listed.leases] == [f"10.5.{third}.0-24"]


async def test_only_certificates_of_the_authority_that_are_valid_now_get_a_connection(
    tmp_path: Path, lab: Certificates, others: Certificates
) -> None:
    async with serving(tmp_path, lab.server()) as service:
        assert await is_served(lab.client("h1"), service.address)
        knows_us = replace(others.client("h1"), authorities=lab.files("ca").certificate)
        assert not await is_served(knows_us, service.address)
        assert not await is_served(lab.client("h2", start_days=-20), service.address)
        assert not await is_served(lab.client("relay", start_days=2), service.address)
        assert not await is_served(lab.server("another"), service.address), "it is no certificate of a client"
        async with grpc.aio.insecure_channel(service.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await Stub(channel).GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)
        no_certificate = grpc.ssl_channel_credentials(lab.files("ca").certificate.read_bytes())
        async with grpc.aio.secure_channel(service.address, no_certificate) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await Stub(channel).GetStatus(pb.GetStatusRequest(), timeout=PATIENCE)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize(
    ("version", "works"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
async def test_tls_is_1_2_or_newer(tmp_path: Path, lab: Certificates, version: ssl.TLSVersion, works: bool) -> None:
    files = lab.client("h1")
    context = ssl.create_default_context(cafile=files.authorities)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version

    def first_byte(port: int) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), 10) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as wrapped,
        ):
            return wrapped.recv(1)

    async with serving(tmp_path, lab.server()) as service:
        if works:
            assert await asyncio.to_thread(first_byte, service.port)
        else:
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(first_byte, service.port)


async def test_a_new_certificate_and_a_new_authority_are_in_force_without_a_restart(
    tmp_path: Path, lab: Certificates, others: Certificates
) -> None:
    files, old, new = lab.server(), lab.client("h1"), others.client("h1")
    async with serving(tmp_path, files) as service, client(old, service.address) as stub:
        stream: Any = stub.WatchLeases(pb.WatchLeasesRequest(node="h1"))
        await stream.read()
        expiry = service.metric("flannelette_tls_certificate_expiry_timestamp_seconds")
        newer = others.server()
        newer.certificate.replace(files.certificate)
        newer.key.replace(files.key)
        newer.authorities.replace(files.authorities)
        await eventually(lambda: service.log, contains("new TLS files are in force"))
        new = replace(new, authorities=files.authorities)
        assert await is_served(new, service.address)
        assert not await is_served(replace(old, authorities=files.authorities), service.address)
        await stub.AcquireLease(request_to_proto(make_request("h1", "172.16.0.1")))
        assert (await stream.read()).changes, "the stream of before goes on"
        assert service.metric("flannelette_tls_certificate_expiry_timestamp_seconds") >= expiry


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_of_an_authority_that_is_gone_is_not_resumed(
    tmp_path: Path, lab: Certificates, others: Certificates, version: ssl.TLSVersion
) -> None:
    files, ours, newer = lab.server(), lab.client("h1"), others.server()
    context = ssl.create_default_context(cafile=str(ours.authorities))
    context.load_cert_chain(ours.certificate, ours.key)
    context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    async with serving(tmp_path, files) as service:
        session, data = await asyncio.to_thread(greeted, service.port, context, None)
        again, data = await asyncio.to_thread(greeted, service.port, context, session)
        assert again is not None, "where nothing has changed, it is resumed"
        assert data
        newer.certificate.replace(files.certificate)
        newer.key.replace(files.key)
        newer.authorities.replace(files.authorities)
        await eventually(lambda: service.log, contains("new TLS files are in force"))
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        assert await asyncio.to_thread(greeted, service.port, context, session) == (None, b"")


def greeted(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bytes]:
    """The session of a connection, None if it was to resume another and has not; and what the service says first."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost", session=session) as connection:
                said = connection.recv(64)
                return connection.session if session is None or connection.session_reused else None, said
        except (ssl.SSLError, ConnectionResetError):
            return None, b""


async def test_with_both_authorities_in_the_file_certificates_of_both_are_good(
    tmp_path: Path, lab: Certificates
) -> None:
    """As an authority is changed: both names are the same, as they often are."""
    newer = Certificates(tmp_path / "newer" / "lab")
    both = tmp_path / "both.crt"
    both.write_bytes(lab.files("ca").authorities.read_bytes() + newer.files("ca").authorities.read_bytes())
    async with serving(tmp_path, replace(lab.server(), authorities=both)) as service:
        for client_of in (lab, newer):
            assert await is_served(replace(client_of.client("h1"), authorities=both), service.address)


async def test_new_files_that_do_not_fit_together_are_never_in_force(tmp_path: Path, lab: Certificates) -> None:
    files = lab.server()
    good = files.key.read_bytes()
    async with serving(tmp_path, files) as service:
        files.key.write_bytes(lab.server("another").key.read_bytes())
        await eventually(lambda: service.log, contains("does not belong to the certificate"))
        assert service.metric("flannelette_tls_files_refused") == 1
        assert await is_served(lab.client("h1"), service.address)
        files.key.write_bytes(good)
        await eventually(lambda: service.log, contains("new TLS files are in force"))
        assert service.metric("flannelette_tls_files_refused") == 0


async def test_an_expired_certificate_is_a_reason_until_it_is_replaced(tmp_path: Path, lab: Certificates) -> None:
    async with (
        serving(tmp_path, lab.server(start_days=-20)) as service,
        grpc.aio.insecure_channel(service.process.address) as channel,
    ):
        status = await Stub(channel).GetStatus(pb.GetStatusRequest())
        assert not status.ready
        (reason,) = [reason for reason in status.reasons if "expired on" in reason]
        assert "replace the file, no restart is needed" in reason
        assert not await is_served(lab.client("h1"), service.address)
        lab.server()
        async for health in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if health.status == health_pb2.HealthCheckResponse.SERVING:
                break
        assert await is_served(lab.client("h1"), service.address)


def test_what_it_cannot_serve_with_is_said_in_one_line(tmp_path: Path, lab: Certificates) -> None:
    wrong_key = replace(lab.server(), key=lab.server("another").key)
    assert "does not belong to the certificate in" in end_of(tmp_path, *flags(wrong_key))
    listen = f"--listen=127.0.0.1:{free_port()}"
    assert "h1.crt is for clients only: serve unix:PATH" in end_of(tmp_path, listen, *flags(lab.client("h1")))


def end_of(directory: Path, *arguments: str) -> str:
    """What a service says that cannot start."""
    with ServiceProcess(directory, *embedded(directory), *arguments) as process:
        assert process.wait() == 1
        (line,) = process.log.read_text().splitlines()
        process.log.unlink()
        return line


async def test_tcp_beyond_loopback_without_tls_must_be_asked_for_by_its_name(tmp_path: Path) -> None:
    port = free_port()
    for address in (f"0.0.0.0:{port}", f"[::]:{port}"):
        assert "not on loopback" in end_of(tmp_path, f"--listen={address}")
        with socket.socket() as nobody, pytest.raises(ConnectionRefusedError):
            nobody.connect(("127.0.0.1", port))
    arguments = [f"--listen=0.0.0.0:{port}", "--dangerously-without-tls"]
    with ServiceProcess(tmp_path, *embedded(tmp_path), *arguments):
        async with stub_of(f"127.0.0.1:{port}") as stub:
            assert (await stub.GetStatus(pb.GetStatusRequest())).version
