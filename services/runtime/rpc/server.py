"""The gRPC server of every service: authorization, error mapping, health and reflection."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as grpc_health

from flannelette.services.runtime.rpc.authorization import Authorizer
from flannelette.services.runtime.rpc.interceptor import ErrorInterceptor
from flannelette.services.runtime.rpc.reflection import enable_reflection

AddToServer = Callable[[grpc.aio.Server], None]

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else two processes on one port share its connections
    # Thousands of watchers may reconnect at once: the core's own limits are 1,000 and 3,000. Each takes some 16 KB.
    ("grpc.server.max_pending_requests", 6_000),
    ("grpc.server.max_pending_requests_hard_limit", 6_000),
    # Without this, the core hands on each call that a client begins and resets at once: 100,000 take 1 GB. A relay
    # has a call for each of its nodes that waits.
    ("grpc.max_concurrent_streams", 1_024),
    ("grpc.max_receive_message_length", 1 << 20),  # the largest request of ours is a report of 20 KB
    ("grpc.absolute_max_metadata_size", 8192),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # The connection of a frozen or dead client is closed after 28 s. Our clients ping every 10 s, which counts as
    # activity: 1,000 of them cost 0.4 % of a core, with this option and without.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 8_000),  # keepalive_timeout_ms has no effect in this core
)


class Server:
    """Serves the given servicers, by full name. Health, of each service and in total, is NOT_SERVING at first.

    With an authorizer, every call over TLS needs the certificate that the method requires (authorization.py).
    `network` is the name of the one that the process serves.
    """

    def __init__(
        self,
        servicers: Mapping[str, AddToServer],
        authorizer: Authorizer | None = None,
        options: Sequence[tuple[str, int]] = (),
        network: str = "",
    ) -> None:
        self._health = grpc_health.HealthServicer()
        self._names = ("", *servicers)
        interceptors = [*([authorizer] if authorizer else []), ErrorInterceptor(network)]
        self.grpc = grpc.aio.server(interceptors=interceptors, options=(*_OPTIONS, *options))
        for add in servicers.values():
            add(self.grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        enable_reflection((*servicers, health_name), self.grpc)

    async def start(self) -> None:
        """Starts to accept calls."""
        await self.publish(ready=False)
        await self.grpc.start()

    async def publish(self, *, ready: bool) -> None:
        """Sets the status of gRPC health."""
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, serving if ready else not_serving)

    async def stop(self, grace: float | None = None) -> None:
        """Sets health to NOT_SERVING for good, and ends open calls after `grace` seconds. May be called again."""
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace)
