"""Authorization of calls over TLS: the requirement of every method, and the interceptor that enforces it.

Reading is for all members, because every node needs the whole table anyway. A call that acts for one node is for the
dataplane of that node. A call that changes the overlay for others, or removes, is for an administrator.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any, Final

import grpc
import grpc.aio

from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.access import Requirement, Role, principals, refusal
from flannelette.services.core.errors import Forbidden, InvalidInput, Unavailable
from flannelette.services.runtime.rpc.callers import MEMBER, RELAY, Callers
from flannelette.services.runtime.rpc.interceptor import abort
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import Counter
from flannelette.services.runtime.tls.certificate import not_after

log = get_logger()

Context = grpc.aio.ServicerContext[Any, Any]

_SERVICES: Final[Mapping[str, Mapping[Requirement, str]]] = {
    "flannelette.lease.v1.LeaseService": {
        Requirement.WATCHER: "WatchLeases",
        Requirement.MEMBER: "ListLeases GetStatus ListNodes GetConvergence ListQuarantine WatchEvents",
        Requirement.HOLDER: "AcquireLease RenewLease ReleaseLease ReportProgress",
        Requirement.ADMIN: (
            "ReserveSubnet ReleaseSubnet ReclaimLeases RenumberNode ConfirmRemoval DeleteQuarantined"
        ),
    },
    "flannelette.dataplane.v1.DataplaneService": {
        Requirement.MEMBER: "GetStatus WatchStatus ListPeers WatchEvents ProbePeers TracePacket",
        Requirement.ADMIN: "ResyncKernel TeardownKernel HandOver ProbeAddresses CapturePackets",
    },
    "flannelette.masq.v1.MasqService": {
        Requirement.MEMBER: "GetStatus ListRules Explain WatchEvents",
        Requirement.ADMIN: "ResyncRules TeardownRules",
    },
    "flannelette.cloud.v1.CloudService": {
        Requirement.MEMBER: "GetStatus WatchEvents",
        Requirement.ADMIN: "SyncRoutes TeardownRoutes",
    },
    "grpc.health.v1.Health": {Requirement.MEMBER: "Check List Watch"},
    "grpc.reflection.v1.ServerReflection": {Requirement.MEMBER: "ServerReflectionInfo"},
    "grpc.reflection.v1alpha.ServerReflection": {Requirement.MEMBER: "ServerReflectionInfo"},
}

REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    f"/{service}/{method}": requirement
    for service, requirements in _SERVICES.items()
    for requirement, methods in requirements.items()
    for method in methods.split()
}
"""Requirement of each method, by path, `/flannelette.lease.v1.LeaseService/ListLeases`. A method without a row is
refused to every client."""

_TLS: Final = b"ssl"
_NO_TLS: Final = b"insecure"
_FAREWELL_SECONDS: Final = 0.5
"""Seconds for the answer to get to a client whose connection is then closed."""
_REQUEST_SECONDS: Final = 10.0
"""Requests are small, and are sent with the call."""

_REFUSED = Counter("flannelette_calls_refused", "Calls that the client's certificate does not allow", ["method"])


class Authorizer(grpc.aio.ServerInterceptor):
    """Guarantee: no call over TLS reaches its servicer unless the client satisfies the requirement of the method.

    A call over a unix socket may do everything: the mode of the socket is the authority. `plain` False means that
    the server has no unix socket; a call without TLS is then refused.
    """

    def __init__(self, *, plain: bool, callers: Callers | None = None) -> None:
        self._plain = plain
        self._callers = callers or Callers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps handlers of every kind, also those of health and reflection.

        Each becomes a handler of a stream of requests: gRPC calls that before a request is there, so that a client
        that sends none, or resets the call, is counted too.
        """
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return grpc.stream_unary_rpc_method_handler(self._unknown(method))
        kind = "_".join("stream" if s else "unary" for s in (handler.request_streaming, handler.response_streaming))
        inner = getattr(handler, kind)
        wrap = self._generator if inspect.isasyncgenfunction(inner) else self._coroutine
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(
            wrap(inner, method, is_stream=handler.request_streaming),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _coroutine(self, inner: Any, method: str, *, is_stream: bool) -> Any:
        async def call(requests: Any, context: Context) -> Any:
            async with self._counted(method, context):
                request = requests if is_stream else await _only(requests, method, context)
                await self._authorize(request, context, method)
                return await inner(request, context)

        return call

    def _generator(self, inner: Any, method: str, *, is_stream: bool) -> Any:
        async def call(requests: Any, context: Context) -> Any:
            async with self._counted(method, context):
                request = requests if is_stream else await _only(requests, method, context)
                await self._authorize(request, context, method)
                async with aclosing(inner(request, context)) as responses:
                    async for response in responses:
                        yield response

        return call

    def _unknown(self, method: str) -> Any:
        async def call(_: Any, context: Context) -> Any:
            async with self._counted(method, context):
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

        return call

    @asynccontextmanager
    async def _counted(self, method: str, context: Context) -> AsyncIterator[None]:
        """Counts the call as its client's while the block runs. A client that has too many gets an error."""
        peer = context.auth_context()
        if list(peer.get("transport_security_type", ())) != [_TLS]:
            yield
            return
        uris = _uris(peer)
        left = _seconds_left(peer)
        if left <= 0:
            await self._end_expired(method, context)
        is_relay = any(each.role is Role.RELAY for each in principals(uris))
        with ExitStack() as counted:
            try:
                who = ", ".join(uris) or "a certificate without a URI"
                counted.enter_context(self._callers.call(context.peer(), who, RELAY if is_relay else MEMBER))
            except Unavailable as error:
                await abort(error, method, context)
            try:
                async with asyncio.timeout(left) as until:  # a stream may last longer than the certificate
                    yield
            except TimeoutError:
                if not until.expired():
                    raise
                await self._end_expired(method, context)

    async def _end_expired(self, method: str, context: Context) -> None:
        """Ends the call, and the connection: with a certificate that is valid, the client gets another one."""
        asyncio.get_running_loop().call_later(_FAREWELL_SECONDS, self._callers.close, context.peer())
        who = ", ".join(_uris(context.auth_context()))
        await abort(Unavailable(f"the certificate of {who} has expired: connect with a new one"), method, context)

    async def _authorize(self, request: Any, context: Context, method: str) -> None:
        peer = context.auth_context()
        reason = self.refusal(request, peer, method)
        name = method.rpartition("/")[2]
        if reason:
            _REFUSED.labels(name).inc()
            await abort(Forbidden(f"{name}: {reason}"), method, context)
        if _uris(peer) and REQUIREMENTS.get(method) is Requirement.ADMIN:
            log.info("an administrator calls", method=name, who=", ".join(_uris(peer)))

    def refusal(self, request: Any, peer: Mapping[str, Iterable[bytes]], method: str) -> str:
        """A sentence that says why the call is refused; empty: it is allowed. `peer` is gRPC's auth_context()."""
        security = list(peer.get("transport_security_type", ()))
        if security == [_NO_TLS] and self._plain:
            return ""
        if security != [_TLS]:
            return "the service accepts only clients with a certificate"
        needed = REQUIREMENTS.get(method)
        if needed is None:
            return "no client may call this method over TLS; call it on the unix socket"
        # A stream of requests has no fields, and no requirement of a streaming method needs one.
        node = getattr(request, "node", "")
        relayed = getattr(request, "relayed", False)
        whole = relayed or getattr(request, "view", lease_pb2.VIEW_ALL) != lease_pb2.VIEW_OWN
        exported = getattr(request, "view", None) == lease_pb2.VIEW_EXPORTED
        return refusal(principals(_uris(peer)), needed, node, whole=whole, exported=exported)


async def _only(requests: AsyncIterator[Any], method: str, context: Context) -> Any:
    """The request of a call that has one; ends the call if none comes."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            return await anext(aiter(requests))
    except TimeoutError:
        await abort(Unavailable(f"no request came within {_REQUEST_SECONDS:.0f} s"), method, context)
    except StopAsyncIteration:
        await abort(InvalidInput("the call has no request"), method, context)


def _seconds_left(peer: Mapping[str, Iterable[bytes]]) -> float:
    """How long the client's certificate is still valid; one that cannot be read is not."""
    try:
        return min(not_after(each) for each in peer.get("x509_pem_cert", ())) - time.time()
    except ValueError:
        return 0.0


def caller(context: Context) -> str:
    """Names the caller, for a record of the call."""
    return ", ".join(_uris(context.auth_context())) or "an operator on this host"


def _uris(peer: Mapping[str, Iterable[bytes]]) -> list[str]:
    """The URIs among the alternative names of the client's certificate; none without TLS."""
    return [uri.decode("ascii", "replace") for uri in peer.get("peer_uri", ())]
