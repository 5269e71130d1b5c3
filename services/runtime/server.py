"""A gRPC server with what every one of ours has: our errors, health, reflection v1 and v1alpha."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as grpc_reflection

from services.runtime.interceptor import ErrorInterceptor

AddToServer = Callable[[grpc.aio.Server], None]

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two processes on one port would share its connections
    ("grpc.server.max_pending_requests", 100_000),  # thousands of watchers may come back at once
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
_REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"


class Server:
    """Serves the given servicers, by full name; health of each and of the whole is NOT_SERVING at first."""

    def __init__(self, servicers: Mapping[str, AddToServer]) -> None:
        self.grpc = grpc.aio.server(interceptors=[ErrorInterceptor()], options=_OPTIONS)
        self._health = grpc_health.HealthServicer()
        self._names = ("", *servicers)
        for add in servicers.values():
            add(self.grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        _enable_reflection((*servicers, health_name, reflection.SERVICE_NAME, _REFLECTION_V1), self.grpc)

    async def start(self) -> None:
        """Accepts calls from now on."""
        await self.publish(ready=False)
        await self.grpc.start()

    async def publish(self, *, ready: bool) -> None:
        """Tells gRPC health."""
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, serving if ready else not_serving)

    async def stop(self, grace: float | None = None) -> None:
        """NOT_SERVING for good; open calls have `grace` seconds. May be called again."""
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace)


def _enable_reflection(names: tuple[str, ...], server: grpc.aio.Server) -> None:
    """Reflection under both names: grpcurl asks v1 first, grpcio knows v1alpha; their messages are the same."""
    reflection.enable_server_reflection(names, server)
    servicer: Any = grpc_reflection.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_REFLECTION_V1, {"ServerReflectionInfo": handler}),)
    )
