"""Who may call what over TLS: every method of every service, called with every kind of certificate."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.message_factory import GetMessageClass

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.rpc.authorization import REQUIREMENTS, Authorizer
from flannelette.services.runtime.rpc.server import Server, bound
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.certificates import LOOPBACK, URIS, Certificates, transport
from tests.unit.runtime.test_authorization import METHODS, REFLECTION_V1

READ = """
    lease/ListLeases lease/GetStatus lease/ListNodes lease/GetConvergence lease/ListQuarantine lease/WatchLeases
    lease/WatchEvents
    dataplane/GetStatus dataplane/WatchStatus dataplane/ListPeers dataplane/WatchEvents
    dataplane/ProbePeers dataplane/TracePacket
    masq/GetStatus masq/ListRules masq/Explain masq/WatchEvents
    cloud/GetStatus cloud/WatchEvents
""".split()
FOR_H1 = "lease/AcquireLease lease/RenewLease lease/ReleaseLease lease/ReportProgress".split()
ADMINISTER = """
    lease/ReserveSubnet lease/ReleaseSubnet lease/ReclaimLeases lease/RenumberNode lease/ConfirmRemoval
    lease/DeleteQuarantined
    dataplane/ResyncKernel dataplane/TeardownKernel dataplane/HandOver dataplane/ProbeAddresses
    dataplane/CapturePackets
    masq/ResyncRules masq/TeardownRules
    cloud/SyncRoutes cloud/TeardownRoutes
""".split()
WATCH_AS_H1 = ["lease/WatchLeases as h1"]

ALLOWED = {
    "h1": {*READ, *FOR_H1, *WATCH_AS_H1},
    "h2": {*READ},
    "h1-masq": {*READ},
    "relay": {*READ, *FOR_H1, *WATCH_AS_H1},
    "admin": {*READ, *ADMINISTER},
    "cluster": set(),
    "stranger": set(),
    "": {*READ, *FOR_H1, *ADMINISTER, *WATCH_AS_H1},
}
"""By certificate; the last is the unix socket. Every request with a node names h1."""


def short(path: str) -> str:
    """`/flannelette.lease.v1.LeaseService/ListLeases` is `lease/ListLeases`."""
    package, _, method = path.rpartition("/")
    return f"{package.split('.')[1]}/{method}"


OURS = {path: method for path, method in METHODS.items() if path.startswith("/flannelette.")}


def add_everything(server: grpc.aio.Server) -> None:
    """Answers every call of the services with an empty message."""

    async def answer(request: Any, context: Any) -> bytes:
        return b""

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b""

    for path, method in OURS.items():
        service, _, name = path[1:].rpartition("/")
        deserialize = GetMessageClass(method.input_type).FromString
        handler: Any = (
            grpc.unary_stream_rpc_method_handler(stream, request_deserializer=deserialize)
            if method.server_streaming
            else grpc.unary_unary_rpc_method_handler(answer, request_deserializer=deserialize)
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))


@pytest_asyncio.fixture(name="channels")
async def channels_of_everybody(tmp_path: Path) -> AsyncIterator[dict[str, grpc.aio.Channel]]:
    certificates = Certificates(tmp_path / "certificates")
    server = Server({"flannelette.lease.v1.LeaseService": add_everything}, Authorizer(plain=True))
    address, path = f"127.0.0.1:{free_port()}", f"unix:{tmp_path}/x.sock"
    serving = transport(certificates.server(addresses=LOOPBACK))
    with bound(server.grpc, address, serving), bound(server.grpc, path, serving):
        await server.start()
        channels = {name: transport(certificates.client(name)).channel(address) for name in URIS}
        channels[""] = serving.channel(path)
        yield channels
        for channel in channels.values():
            await channel.close()
        await server.stop()


async def allowed(channel: grpc.aio.Channel, path: str, **fields: Any) -> bool:
    """Whether the call is answered; a refusal must be PERMISSION_DENIED with a sentence about certificates."""
    kind = GetMessageClass(OURS[path].input_type)
    known = {field.name for field in kind.DESCRIPTOR.fields}
    request = kind(**{name: value for name, value in fields.items() if name in known})
    serialize = kind.SerializeToString
    try:
        if OURS[path].server_streaming:
            call: Any = channel.unary_stream(path, request_serializer=serialize)(request, timeout=PATIENCE)
            assert [message async for message in call] == [b""]
        else:
            assert await channel.unary_unary(path, request_serializer=serialize)(request, timeout=PATIENCE) == b""
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.PERMISSION_DENIED or "flannelette://" not in (error.details() or ""):
            raise
        return False
    return True


async def test_each_certificate_may_do_this_and_nothing_else(channels: dict[str, grpc.aio.Channel]) -> None:
    for who, channel in channels.items():
        may = {short(path) for path in OURS if await allowed(channel, path, node="h1", view=pb.VIEW_OWN)}
        may |= {WATCH_AS_H1[0] for path in OURS if "Watch" in path and await watched_as_h1(channel, path)}
        assert may == ALLOWED[who], f"{who or 'the unix socket'}: {may ^ ALLOWED[who]}"


async def watched_as_h1(channel: grpc.aio.Channel, path: str) -> bool:
    return short(path) == "lease/WatchLeases" and await allowed(channel, path, node="h1", view=pb.VIEW_ALL)


async def test_who_may_not_watch_as_a_node_may_not_relay_it_either(channels: dict[str, grpc.aio.Channel]) -> None:
    path = "/flannelette.lease.v1.LeaseService/WatchLeases"
    for who, channel in channels.items():
        may = await allowed(channel, path, node="h1", view=pb.VIEW_OWN, relayed=True)
        assert may == (WATCH_AS_H1[0] in ALLOWED[who]), who


async def test_a_request_without_a_node_speaks_for_nobody(channels: dict[str, grpc.aio.Channel]) -> None:
    for who in URIS:
        may = {short(path) for path in OURS if await allowed(channels[who], path)}
        assert not may & {*FOR_H1}
        assert may == ALLOWED[who] - {*FOR_H1, *WATCH_AS_H1}


async def test_health_and_reflection_are_for_members(channels: dict[str, grpc.aio.Channel]) -> None:
    for who, channel in channels.items():
        answers = [await say_something(channel, path) for path in METHODS if not path.startswith("/flannelette.")]
        answers.append(await say_something(channel, REFLECTION_V1))
        assert answers == [who not in ("stranger", "cluster")] * 5


async def say_something(channel: grpc.aio.Channel, path: str) -> bool:
    """Whether it is let in. An empty message is a question to health and reflection; grpcio has no Health/List."""
    call: Any = channel.stream_stream(path)
    try:
        return await call(iter([b""]), timeout=PATIENCE).read() is not None
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_method_without_a_rule_is_refused_to_everybody(
    channels: dict[str, grpc.aio.Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/flannelette.lease.v1.LeaseService/GetStatus"
    without = {other: rule for other, rule in REQUIREMENTS.items() if other != path}
    monkeypatch.setattr("flannelette.services.runtime.rpc.authorization.REQUIREMENTS", without)
    for who in URIS:
        with pytest.raises(grpc.aio.AioRpcError, match="no client may call this method over TLS"):
            await allowed(channels[who], path)
    assert await allowed(channels[""], path)


def test_without_a_unix_socket_nobody_comes_without_a_certificate() -> None:
    method = "/flannelette.lease.v1.LeaseService/GetStatus"
    no_tls = {"transport_security_type": [b"insecure"]}
    assert Authorizer(plain=False).refusal(pb.GetStatusRequest(), no_tls, method)
    assert not Authorizer(plain=True).refusal(pb.GetStatusRequest(), no_tls, method)
    for unknown in ({}, {"transport_security_type": [b"alts"]}, {"peer_uri": [URIS["admin"].encode()]}):
        assert Authorizer(plain=True).refusal(pb.GetStatusRequest(), unknown, method)
