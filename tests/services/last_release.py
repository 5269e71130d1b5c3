"""A peer of the last release: a proxy that knows only the protocols of its file in proto/released.

What goes through it, either way, loses everything that the last release did not know, as if that release had sent or
understood it. So a client of today behind it is one of the last release to the server, and the server one to it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, MethodDescriptor

from tests.paths import ROOT
from tests.upgrade.releases import LAST

RELEASED: Final = ROOT / "proto/released"
"""A file of descriptors for each release."""
_FORWARDED: Final = ("/grpc.health.", "/grpc.reflection.")

Filter = Callable[[bytes], bytes]


def released() -> dict[str, MethodDescriptor]:
    """The methods of the last release, as `/package.Service/Method`."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString((RELEASED / f"{LAST}.binpb").read_bytes()).file
    for file in files:
        pool.Add(file)
    services = (pool.FindServiceByName(f"{file.package}.{each.name}") for file in files for each in file.service)
    return {f"/{service.full_name}/{method.name}": method for service in services for method in service.methods}


def known_to_the_last_release(kind: Descriptor) -> Filter:
    """What a program of the last release makes of a message, and would hand on."""
    message = message_factory.GetMessageClass(kind)

    def filtered(data: bytes) -> bytes:
        parsed: Any = message.FromString(data)
        parsed.DiscardUnknownFields()
        return bytes(parsed.SerializeToString())

    return filtered


class _Proxy(grpc.GenericRpcHandler):
    def __init__(self, upstream: grpc.aio.Channel) -> None:
        self._upstream = upstream
        self._methods = released()

    def service(self, handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        if path.startswith(_FORWARDED):
            return grpc.unary_stream_rpc_method_handler(self._stream(path, bytes, bytes))
        method = self._methods.get(path)
        if method is None:
            return None  # UNIMPLEMENTED, as a server of the last release says
        ask, answer = (known_to_the_last_release(kind) for kind in (method.input_type, method.output_type))
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(path, ask, answer))
        return grpc.unary_unary_rpc_method_handler(self._unary(path, ask, answer))

    def _unary(self, path: str, ask: Filter, answer: Filter) -> Any:
        async def call(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            try:
                forward: Any = self._upstream.unary_unary(path)
                return answer(await forward(ask(request)))
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")

        return call

    def _stream(self, path: str, ask: Filter, answer: Filter) -> Any:
        async def call(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
            try:
                forward: Any = self._upstream.unary_stream(path)
                async for response in forward(ask(request)):
                    yield answer(response)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")

        return call


@asynccontextmanager
async def last_release_before(address: str, at: str) -> AsyncIterator[None]:
    """Serves at `at` what serves at `address`, as if one of the two were of the last release."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 100)]) as upstream:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_Proxy(upstream),))
        server.add_insecure_port(at)
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)
