"""Our errors as gRPC statuses, over a real server and back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core import errors
from flannelette.services.runtime.rpc.interceptor import CODES, error_of
from flannelette.services.runtime.rpc.server import Server, bound
from tests.waiting import eventually

NAME = "flannelette.lease.v1.LeaseService"


class Raising:
    """Raises what the test wants: at once in a call, after one message in a stream."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.ended = False
        self.kept: list[Any] = []

    def add_to_server(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "GetStatus": grpc.unary_unary_rpc_method_handler(
                self.get_status, pb.GetStatusRequest.FromString, pb.GetStatusResponse.SerializeToString
            ),
            "WatchLeases": grpc.unary_stream_rpc_method_handler(
                self.watch_leases, pb.WatchLeasesRequest.FromString, pb.WatchLeasesResponse.SerializeToString
            ),
        }
        server.add_registered_method_handlers(NAME, handlers)

    async def get_status(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        if self.fault is None:
            await context.abort(grpc.StatusCode.DATA_LOSS, "my own words")
            raise AssertionError
        raise self.fault

    def watch_leases(self, request: pb.WatchLeasesRequest, context: Any) -> AsyncIterator[pb.WatchLeasesResponse]:
        stream = self._stream()
        self.kept.append(stream)  # as something that outlives the call would
        return stream

    async def _stream(self) -> AsyncIterator[pb.WatchLeasesResponse]:
        try:
            for _ in range(1_000_000 if self.fault is None else 1):
                yield pb.WatchLeasesResponse(cursor="x" * 10_000)
            assert self.fault is not None
            raise self.fault
        finally:
            self.ended = True


@asynccontextmanager
async def stub_of(servicer: Raising, directory: Path) -> AsyncIterator[lease_pb2_grpc.LeaseServiceStub]:
    server = Server({NAME: servicer.add_to_server})
    address = f"unix:{directory}/x.sock"
    with bound(server.grpc, address):
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield lease_pb2_grpc.LeaseServiceStub(channel)
        await server.stop()


@pytest.mark.parametrize("kind", [*CODES, errors.Misconfigured])
async def test_every_error_arrives_as_itself(tmp_path: Path, kind: type[errors.FlanneletteError]) -> None:
    async with stub_of(Raising(kind("do this about it")), tmp_path) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetStatus(pb.GetStatusRequest())
        back = error_of(caught.value)
        assert isinstance(back, kind) or kind is errors.Misconfigured
        assert isinstance(back, errors.InvalidInput) or kind is not errors.Misconfigured
        assert str(back) == "do this about it"


async def test_an_error_in_a_stream_comes_after_what_was_sent(tmp_path: Path) -> None:
    async with stub_of(Raising(errors.NotYet("wait")), tmp_path) as stub:
        call = stub.WatchLeases(pb.WatchLeasesRequest())
        await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "wait")


async def test_a_stream_is_closed_as_soon_as_its_client_is_gone(tmp_path: Path) -> None:
    servicer = Raising()
    async with stub_of(servicer, tmp_path) as stub:
        call = stub.WatchLeases(pb.WatchLeasesRequest())
        await call.read()
        call.cancel()
        await eventually(lambda: vars(servicer), lambda _: servicer.ended)


async def test_a_defect_is_internal_and_only_the_log_has_more(tmp_path: Path) -> None:
    async with stub_of(Raising(RuntimeError("secret")), tmp_path) as stub:
        for call in (stub.GetStatus(pb.GetStatusRequest()), drain(stub)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "RuntimeError" in (caught.value.details() or "")
            assert "secret" not in (caught.value.details() or "")


async def test_a_status_that_a_servicer_chose_itself_stays(tmp_path: Path) -> None:
    async with stub_of(Raising(), tmp_path) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetStatus(pb.GetStatusRequest())
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.DATA_LOSS, "my own words")


async def test_a_status_of_no_error_of_ours_is_unavailable() -> None:
    error = grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata(), "")
    assert isinstance(error_of(error), errors.Unavailable)
    assert str(error_of(error)) == "DEADLINE_EXCEEDED"


async def drain(stub: lease_pb2_grpc.LeaseServiceStub) -> None:
    async for _ in stub.WatchLeases(pb.WatchLeasesRequest()):
        pass
