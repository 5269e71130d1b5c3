"""A client over TLS: why it has no connection, in words, and how it comes by a new certificate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.probe import ask
from flannelette.services.runtime.rpc.server import Server, bound
from flannelette.services.runtime.rpc.transport import PLAIN, ServerChannel, Transport
from flannelette.services.runtime.tls import TlsFiles
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.certificates import Certificates, transport
from tests.waiting import contains, equals, eventually


@dataclass(frozen=True)
class Labs:
    ours: Certificates
    others: Certificates
    """Of an authority that the other side does not know."""


@pytest.fixture
def labs(tmp_path: Path) -> Labs:
    return Labs(Certificates(tmp_path / "ours"), Certificates(tmp_path / "others"))


@asynccontextmanager
async def serving(how: Transport) -> AsyncIterator[str]:
    """The address of a server that has nothing but health."""
    server, address = Server({}), f"127.0.0.1:{free_port()}"
    with bound(server.grpc, address, how):
        await server.start()
        yield address
        await server.stop()


async def fault(line: ServerChannel) -> str:
    """Why the line is down; empty: it is not."""
    try:
        await health_pb2_grpc.HealthStub(line.channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    except grpc.aio.AioRpcError as error:
        return await line.why(error)
    return ""


async def fault_between(client: Transport, server: Transport) -> str:
    """The same, without the address."""
    async with serving(server) as address:
        line = ServerChannel(address, "flannelette-lease", client)
        sentence = await fault(line)
        await line.close()
        return sentence.removeprefix(f"no connection to {address}: ").replace(address, "ADDRESS")


async def test_each_fault_has_a_sentence_of_its_own(labs: Labs) -> None:
    ours, others = labs.ours, labs.others
    server, client = transport(ours.server()), transport(ours.client("h1"))
    directory, authorities = ours.directory, ours.files("ca").certificate
    assert await fault_between(client, server) == ""
    assert await fault_between(client, transport(others.server())) == (
        f"no authority in {authorities} has signed the server's certificate: is that the right --tls-ca-file? "
        "(unable to get local issuer certificate)"
    )
    elsewhere = transport(ours.server("elsewhere", addresses=("lease.example.org",)))
    assert await fault_between(client, elsewhere) == (
        "the server's certificate is not for 127.0.0.1: connect to a name or an address in the certificate, or "
        "give one as --tls-server-name"
    )
    assert await fault_between(transport(ours.client("h1"), "lease.example.org"), elsewhere) == ""
    assert await fault_between(client, transport(ours.server("old", start_days=-20))) == (
        "the server's certificate is not valid now (certificate has expired): replace it, or correct the clock"
    )
    expired = await fault_between(transport(ours.client("h2", start_days=-20)), server)
    assert expired.startswith(f"the certificate {directory}/h2.crt expired on ")
    unknown = replace(others.client("h1"), authorities=authorities)
    assert await fault_between(transport(unknown), server) == (
        f"the server refuses the certificate {unknown.certificate} (flannelette://node/h1/dataplane, issued by "
        "commonName=authority others): the --tls-ca-file there must have that authority"
    )
    assert await fault_between(server, server) == (
        f"the certificate {directory}/server.crt is for servers only: give one that clients may use"
    )
    assert await fault_between(client, PLAIN) == (
        "the server does not speak TLS: start the service there with the --tls flags, or leave them out here"
    )
    assert await fault_between(PLAIN, server) == (
        "the server requires TLS: give --tls-cert-file, --tls-key-file and --tls-ca-file"
    )


@pytest.mark.parametrize("encrypted", [True, False])
async def test_that_nobody_is_there_is_no_fault_of_tls(labs: Labs, encrypted: bool) -> None:
    address = f"127.0.0.1:{free_port()}"
    line = ServerChannel(address, "flannelette-lease", transport(labs.ours.client("h1")) if encrypted else PLAIN)
    assert (await fault(line)).startswith(
        f"no answer at {address}: is flannelette-lease running there, and is the address right?"
    )
    await line.close()


@pytest.mark.parametrize("address", ["192.0.2.1:7070", "[2001:db8::1]:7070", "lease.example.org:7070"])
def test_a_channel_beyond_loopback_needs_tls(address: str) -> None:
    with pytest.raises(Misconfigured, match="is not on loopback: give --tls-cert-file"):
        PLAIN.channel(address)
    with pytest.raises(Misconfigured, match="is not an address: use unix:PATH or HOST:PORT"):
        PLAIN.channel("192.0.2.1")


def put(files: TlsFiles, by: TlsFiles) -> None:
    for name in ("certificate", "key", "authorities"):
        getattr(by, name).replace(getattr(files, name))


async def test_a_broken_line_shows_the_new_certificate_and_cancels_no_call(labs: Labs) -> None:
    ours, others = labs.ours, labs.others
    async with serving(transport(ours.server())) as before, serving(transport(others.server())) as after:
        client = transport(ours.client("h1"))
        line = ServerChannel(before, "flannelette-lease", client)
        stub = health_pb2_grpc.HealthStub(line.channel)
        stream = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await stream.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not await line.renew(), "there is no new certificate"

        line.address = after
        put(ours.files("h1"), others.client("h1"))
        assert client.credentials is not None
        client.credentials.replace()
        assert await line.renew()
        assert await fault(line) == ""
        assert not stream.done()
        await line.close()


async def test_the_feed_says_what_is_wrong_and_goes_on_with_a_new_certificate(labs: Labs) -> None:
    ours, others = labs.ours, labs.others
    async with serving(transport(others.server())) as address:
        client = transport(ours.client("h1"))
        connection = LeaseConnection(address, "h1", client)
        feed = Feed(connection, pb.VIEW_ALL, lambda touched: None)
        running = asyncio.create_task(feed.run())
        await eventually(lambda: feed.error, contains("has signed the server's certificate"))
        put(ours.files("h1"), others.client("h1"))
        assert client.credentials is not None
        client.credentials.replace()
        await eventually(lambda: feed.error, equals(f"{address}: Method not found!"))  # it has nothing but health
        running.cancel()
        await connection.close()


async def test_the_probe_asks_with_a_certificate_and_says_what_is_wrong(labs: Labs) -> None:
    client = transport(labs.ours.client("h1"))
    async with serving(transport(labs.ours.server())) as address:
        assert (await asyncio.to_thread(ask, address, client)).endswith("is not ready: `flannelette status` says why")
        assert (await asyncio.to_thread(ask, address)).endswith(
            "the server requires TLS: give --tls-cert-file, --tls-key-file and --tls-ca-file"
        )
