"""Lets a call over TLS in if the certificate of its client allows it; see permissions.py."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio
from flannelette.lease.v1 import lease_pb2

from services.core.access import Requirement, principals, refusal
from services.core.errors import Forbidden
from services.runtime.interceptor import abort
from services.runtime.logs import get_logger
from services.runtime.permissions import requirement
from services.runtime.prometheus import Counter

log = get_logger()

Context = grpc.aio.ServicerContext[Any, Any]

_TLS: Final = b"ssl"
_NO_TLS: Final = b"insecure"

_REFUSED = Counter("flannelette_calls_refused", "Calls that the client's certificate does not allow", ["method"])


class Admission(grpc.aio.ServerInterceptor):
    """Guarantee: no call over TLS reaches its servicer without a rule that its client satisfies.

    A call over a unix socket may do everything, the mode of the socket is the authority; with `plain` False there is
    no such socket, and a call without TLS is refused like any other that we cannot place.
    """

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps handlers of every kind, so also health and reflection."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        kind = "_".join("stream" if s else "unary" for s in (handler.request_streaming, handler.response_streaming))
        inner = getattr(handler, kind)
        wrap = self._generator if inspect.isasyncgenfunction(inner) else self._coroutine
        return getattr(grpc, f"{kind}_rpc_method_handler")(
            wrap(inner, method),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _coroutine(self, inner: Any, method: str) -> Any:
        async def call(request: Any, context: Context) -> Any:
            await self._admit(request, context, method)
            return await inner(request, context)

        return call

    def _generator(self, inner: Any, method: str) -> Any:
        async def call(request: Any, context: Context) -> Any:
            await self._admit(request, context, method)
            async with aclosing(inner(request, context)) as responses:
                async for response in responses:
                    yield response

        return call

    async def _admit(self, request: Any, context: Context, method: str) -> None:
        shown = context.auth_context()
        reason = self.refusal(request, shown, method)
        name = method.rpartition("/")[2]
        if reason:
            _REFUSED.labels(name).inc()
            await abort(Forbidden(f"{name}: {reason}"), method, context)
        if _uris(shown) and requirement(method, request) is Requirement.ADMIN:
            log.info("an administrator calls", method=name, who=", ".join(_uris(shown)))

    def refusal(self, request: Any, shown: Mapping[str, Iterable[bytes]], method: str) -> str:
        """Why the call may not be, in a sentence; empty: it may. `shown` is gRPC's auth_context()."""
        security = list(shown.get("transport_security_type", ()))
        if security == [_NO_TLS] and self._plain:
            return ""
        if security != [_TLS]:
            return "this service is for clients with a certificate"
        needed = requirement(method, request)
        if needed is None:
            return "nobody has said who may do this over TLS; ask on the unix socket"
        # A stream of requests has no fields to look at, and none of ours needs them.
        node = getattr(request, "node", "")
        relayed = getattr(request, "relayed", False)
        whole = relayed or getattr(request, "view", lease_pb2.VIEW_ALL) != lease_pb2.VIEW_OWN
        return refusal(principals(_uris(shown)), needed, node, whole=whole)


def _uris(shown: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Those among the alternative names of a client's certificate; none without TLS."""
    return [uri.decode("ascii", "replace") for uri in shown.get("peer_uri", ())]
