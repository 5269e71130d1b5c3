"""Authorization of calls over TLS: the certificate behind each connection, the requirement of every method, the
interceptor that enforces it, and how much one certificate may call.

Reading is for all members, because every node needs the whole table anyway. A call that acts for one node is for the
dataplane of that node. A call that changes the overlay for others, or removes, is for an administrator.

A member of the cluster may read everything, and so could use up the memory and the time of a service. Calls in
progress are limited for each certificate; a certificate that calls faster than any program of ours is cut off.
"""

import asyncio
import inspect
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any, Final

import grpc
import grpc.aio

from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.access import Requirement, Role, principals, refusal
from flannelette.services.core.errors import Forbidden, InvalidInput, Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.os.own_sockets import Address, packed
from flannelette.services.runtime.rpc.interceptor import abort
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger
from flannelette.services.runtime.telemetry.metrics import Counter
from flannelette.services.runtime.tls import not_after

log = get_logger()

_CUT_OFF = Counter(
    "flannelette_callers_cut_off", "Calls over TLS whose connection was closed: too many of one client"
)


@frozen
class Allowance:
    """What one certificate may do."""

    open: int
    """Largest number of calls in progress."""
    a_second: float
    at_once: float
    """Calls that may come at once, beyond `a_second`, after a time without calls."""


MEMBER: Final = Allowance(open=256, a_second=100, at_once=1_000)
"""A node has a handful of calls in progress, and makes a few a second."""
RELAY: Final = Allowance(open=16_384, a_second=5_000, at_once=50_000)
"""A relay calls for all of its nodes."""
_REFUSED_COUNTS: Final = 10
"""Weight of a call that is refused as one too many. No program of ours repeats it at once."""
_BAN_SECONDS: Final = 10.0
_MOST_REMEMBERED: Final = 65_536


class _Account:
    """The calls of one certificate."""

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.left = allowance.at_once
        self.at = now
        self.banned_until = 0.0


class Callers:
    """The callers of a server. `known`, `forget` and `take_cut` are for any thread, the rest for the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.known: dict[Address, str] = {}
        """Connections on which a certificate was accepted, and whose it is."""
        self.on_cut: Callable[[], None] = lambda: None
        """Called when there is a connection to close."""
        self._clock = clock
        self._open = Tally[str]()
        self._accounts: dict[str, _Account] = {}
        self._cut: dict[Address, bool] = {}
        self._may_log = LogLimiter()

    @contextmanager
    def call(self, peer: str, who: str, allowance: Allowance) -> Iterator[None]:
        """Counts a call while the block runs. `peer` is gRPC's, such as `ipv4:192.0.2.1:4242`.

        Raises Unavailable: the certificate has too many calls in progress, or was cut off.
        """
        endpoint = endpoint_of(peer)
        if endpoint is not None:
            self.known[endpoint] = who
        is_too_many = self._open[who] >= allowance.open
        self._charge(endpoint, who, allowance, _REFUSED_COUNTS if is_too_many else 1)
        if is_too_many:
            raise Unavailable(f"{who} has {allowance.open} calls in progress: wait until one has ended")
        self._open[who] += 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]

    @property
    def has_cut(self) -> bool:
        """Whether there are connections to close."""
        return bool(self._cut)

    def forget(self, endpoint: Address) -> None:
        """The connection is gone."""
        self.known.pop(endpoint, None)

    def take_cut(self) -> dict[Address, bool]:
        """The connections to close, and whether their addresses are to get no other for a while."""
        taken, self._cut = self._cut, {}
        return taken

    def close(self, peer: str) -> None:
        """Has this connection closed: its client has to connect again."""
        if (endpoint := endpoint_of(peer)) is not None:
            self._cut[endpoint] = False
            self.on_cut()

    def _charge(self, endpoint: Address | None, who: str, allowance: Allowance, calls: int) -> None:
        now = self._clock()
        if who not in self._accounts:
            if len(self._accounts) >= _MOST_REMEMBERED:
                self._accounts.clear()
            self._accounts[who] = _Account(allowance, now)
        account = self._accounts[who]
        account.left = min(allowance.at_once, account.left + (now - account.at) * allowance.a_second)
        account.at = now
        if account.left >= calls and now >= account.banned_until:
            account.left -= calls
            return
        if now >= account.banned_until:
            account.banned_until = now + _BAN_SECONDS
        _CUT_OFF.inc()
        if endpoint is not None:
            self._cut[endpoint] = True
            self.on_cut()
        if self._may_log(who):
            log.warning(
                "a client calls too often; its connections are closed",
                who=who,
                address=str(endpoint) if endpoint else "",
                allowed_a_second=allowance.a_second,
                seconds=_BAN_SECONDS,
            )
        raise Unavailable(f"{who} calls too often: more than {allowance.a_second:.0f} times a second")


def endpoint_of(peer: str) -> Address | None:
    """The address of a client over TCP in gRPC's notation; None: it is of another kind."""
    kind, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return Address(packed(host.strip("[]").partition("%")[0]), int(port))


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
