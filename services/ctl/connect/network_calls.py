"""Calls about one of the networks of a service: interceptors that write its name into the requests."""

from collections.abc import Sequence
from typing import Any

import grpc.aio


def calls_in(network: str) -> Sequence[grpc.aio.ClientInterceptor]:
    """Returns the interceptors for a channel whose calls are about this network; none for the only one, without a
    name.
    """
    return (_UnaryInNetwork(network), _StreamInNetwork(network)) if network else ()


class _InNetwork:
    """Sets the field `network` of a request that has one, unless the request names a network itself."""

    def __init__(self, network: str) -> None:
        self._network = network

    async def _call(self, continuation: Any, details: Any, request: Any) -> Any:
        if "network" in request.DESCRIPTOR.fields_by_name and isinstance(request.network, str):
            request.network = request.network or self._network
        return await continuation(details, request)


class _UnaryInNetwork(_InNetwork, grpc.aio.UnaryUnaryClientInterceptor):
    """The interceptor of calls with one answer."""

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See grpc.aio."""
        return await self._call(continuation, client_call_details, request)


class _StreamInNetwork(_InNetwork, grpc.aio.UnaryStreamClientInterceptor):
    """The interceptor of calls with a stream of answers."""

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """See grpc.aio."""
        return await self._call(continuation, client_call_details, request)
