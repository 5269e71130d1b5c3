"""Lets a call over TLS in if the certificate of its client allows it; see permissions.py."""

import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import grpc
import grpc.aio
from flannelette.lease.v1 import lease_pb2

from services.core.access import principals, refusal
from services.core.errors import Forbidden
from services.runtime.interceptor import abort
from services.runtime.permissions import REQUIREMENTS

Context = grpc.aio.ServicerContext[Any, Any]

_TLS: Final = b"ssl"
_NO_TLS: Final = b"insecure"


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
        reason = self.refusal(request, context, method)
        if reason:
            await abort(Forbidden(f"{method.rpartition('/')[2]}: {reason}"), method, context)

    def refusal(self, request: Any, context: Context, method: str) -> str:
        """Why the call may not be, in a sentence; empty: it may."""
        shown = context.auth_context()
        security = list(shown.get("transport_security_type", ()))
        if security == [_NO_TLS] and self._plain:
            return ""
        if security != [_TLS]:
            return "this service is for clients with a certificate"
        requirement = REQUIREMENTS.get(method)
        if requirement is None:
            return "nobody has said who may do this over TLS; ask on the unix socket"
        uris = [uri.decode("ascii", "replace") for uri in shown.get("peer_uri", ())]
        # A stream of requests has no fields to look at, and none of ours needs them.
        node = getattr(request, "node", "")
        relayed = getattr(request, "relayed", False)
        whole = relayed or getattr(request, "view", lease_pb2.VIEW_ALL) != lease_pb2.VIEW_OWN
        return refusal(principals(uris), requirement, node, whole=whole)
