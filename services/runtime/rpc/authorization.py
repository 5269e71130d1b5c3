"""Authorization of calls over TLS: the certificate behind each connection, the requirement of every method, the
interceptor that enforces it, and how much one certificate may call.

Reading is for all members, because every node needs the whole table anyway. A call that acts for one node is for the
dataplane of that node. A call that changes the overlay for others, or removes, is for an administrator.

A member of the cluster may read everything, and so could use up the memory and the time of a service. Calls in
progress, bytes of answers, and those that nobody has read yet are limited for each certificate; one that calls faster
than any program of ours is cut off. Without TLS the answers of an address are counted, or of the unix socket.
"""

import asyncio
import inspect
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from ipaddress import IPv6Network, ip_address
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
    """What one client may do."""

    open: int
    """Largest number of calls in progress."""
    a_second: float
    at_once: float
    """Calls that may come at once, beyond `a_second`, after a time without calls."""
    bytes_a_second: float
    bytes_at_once: float
    """Bytes of answers after a time without any, and bytes that may wait for who asked for them to read them."""


MEMBER: Final = Allowance(open=256, a_second=100, at_once=1_000, bytes_a_second=1 << 20, bytes_at_once=4 << 20)
"""A node has a handful of calls in progress, and makes a few a second. The table of 5,000 nodes has half a MiB."""
RELAY: Final = Allowance(open=16_384, a_second=5_000, at_once=50_000, bytes_a_second=16 << 20, bytes_at_once=64 << 20)
"""A relay calls for all of its nodes. So do those who share an address, or the unix socket, as far as we can tell."""
_REFUSED_COUNTS: Final = 10
"""Weight of a call that is refused as one too many. No program of ours repeats it at once."""
_BAN_SECONDS: Final = 10.0
_LARGE: Final = 64 << 10
"""Bytes of an answer from which on it takes so long to make that it has to wait for the client's allowance."""
_MOST_UNREAD: Final = 256 << 20
"""Bytes of answers that nobody has read yet, of all clients: of more, each has one."""
_STALLED_SECONDS: Final = 28.0
"""Seconds that a client has to take an answer: as many as one of which nothing is wanted has to answer a ping."""
_MOST_REMEMBERED: Final = 65_536


class _Account:
    """The calls of one client."""

    def __init__(self, allowance: Allowance, now: float) -> None:
        self.allowance = allowance
        self.left = allowance.at_once
        self.bytes_left = allowance.bytes_at_once
        """What may be answered yet; less than 0 after an answer that was larger than that."""
        self.unread = 0
        """Bytes of answers that the client has not taken yet."""
        self.at = now
        self.banned_until = 0.0

    def refill(self, now: float) -> None:
        """Adds what the time since the last call allows."""
        may, seconds = self.allowance, now - self.at
        self.left = min(may.at_once, self.left + seconds * may.a_second)
        self.bytes_left = min(may.bytes_at_once, self.bytes_left + seconds * may.bytes_a_second)
        self.at = now


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
        self._sizes: dict[str, int] = {}
        """Bytes of the largest answer of each method."""
        self._unread = 0
        """Bytes of answers that clients have not taken yet."""
        self._cut: dict[Address, bool] = {}
        self._may_log = LogLimiter()

    @contextmanager
    def call(self, peer: str, who: str, allowance: Allowance) -> Iterator[None]:
        """Counts a call while the block runs. `peer` is gRPC's, such as `ipv4:192.0.2.1:4242`.

        Raises Unavailable: the client has too many calls in progress, or was cut off.
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

    @asynccontextmanager
    async def answer(self, peer: str, who: str, allowance: Allowance, method: str) -> AsyncIterator["Send"]:
        """Counts an answer while the block makes it, and sends it by what is yielded.

        Raises Unavailable: the client was sent too much of late, or has not read too much. An answer that is not
        taken for 28 s cancels the call.
        """
        account, endpoint = self._account(who, allowance), endpoint_of(peer)
        expected = self._sizes.get(method, 0)

        def require(has_room: bool) -> None:
            if not has_room:
                self._charge(endpoint, who, allowance, _REFUSED_COUNTS - 1)
                seconds = max(1.0, -account.bytes_left / allowance.bytes_a_second)
                raise Unavailable(f"{who} asks for too much: ask again in {seconds:.0f} s")

        async def send(data: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
            nonlocal expected
            size = len(data)
            self.note_size(method, size)
            account.bytes_left += expected - size
            expected = 0
            require(self._has_room(account))  # more may have been made meanwhile
            account.unread, self._unread = account.unread + size, self._unread + size
            try:
                async with asyncio.timeout(_STALLED_SECONDS):
                    await write(data)
            except TimeoutError:
                raise asyncio.CancelledError from None  # an error would wait behind the answer
            finally:
                account.unread, self._unread = account.unread - size, self._unread - size

        require(account.bytes_left >= 0 and self._has_room(account))
        account.bytes_left -= expected
        try:
            yield send
        finally:
            account.bytes_left += expected  # an error is no answer

    def _has_room(self, account: _Account) -> bool:
        """Whether another answer may wait for this client to read it."""
        return not account.unread or (
            account.unread < account.allowance.bytes_at_once and self._unread < _MOST_UNREAD
        )

    def note_size(self, method: str, size: int) -> None:
        """An answer of the method has so many bytes."""
        if size > self._sizes.get(method, -1):
            self._sizes[method] = size

    def is_large(self, method: str) -> bool:
        """Whether answers of the method may be so large that they have to be counted; not so of a known small one."""
        return self._sizes.get(method, _LARGE) >= _LARGE

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

    def _account(self, who: str, allowance: Allowance) -> _Account:
        """The account of a client, as of now."""
        now = self._clock()
        if who not in self._accounts:
            if len(self._accounts) >= _MOST_REMEMBERED:
                self._accounts.clear()
            self._accounts[who] = _Account(allowance, now)
        self._accounts[who].refill(now)
        return self._accounts[who]

    def _charge(self, endpoint: Address | None, who: str, allowance: Allowance, calls: int) -> None:
        now, account = self._clock(), self._account(who, allowance)
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


def _place_of(endpoint: Address | None) -> str:
    """Names the clients without a certificate that are counted together: those of one host."""
    if endpoint is None:
        return "the unix socket"
    host = ip_address(endpoint.host)
    if host.is_loopback:
        return "this host"
    return f"the address {host}" if host.version == 4 else f"the network {IPv6Network((host, 64), strict=False)}"


Send = Callable[[bytes, Callable[[bytes], Awaitable[None]]], Awaitable[None]]
"""Sends an answer by what writes it; see Callers.answer."""


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
    the server has no unix socket; a call without TLS is then refused. `tls` False means that it has no address with
    TLS: then large answers are counted, and nothing else.
    """

    def __init__(self, *, plain: bool, tls: bool = True, callers: Callers | None = None) -> None:
        self._plain = plain
        self._tls = tls
        self._callers = callers or Callers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps handlers of every kind, also those of health and reflection.

        Each becomes a handler of a stream of requests: gRPC calls that before a request is there, so that a client
        that sends none, or resets the call, is counted too. Where answers are large, it is one of a stream of answers
        as well, which is the same on the wire: of a single answer, gRPC does not say when it was read.
        """
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return grpc.stream_unary_rpc_method_handler(self._unknown(method)) if self._tls else None
        kind = "_".join("stream" if s else "unary" for s in (handler.request_streaming, handler.response_streaming))
        inner, serialize = getattr(handler, kind), handler.response_serializer
        is_single = not handler.response_streaming and serialize is not None
        if is_single and self._callers.is_large(method):
            kind, call = "stream_stream", self._large(inner, method, serialize, is_stream=handler.request_streaming)
            serialize = None
        else:
            call = inner
            if self._tls:
                wrap = self._generator if inspect.isasyncgenfunction(inner) else self._coroutine
                kind, call = (
                    f"stream_{kind.partition('_')[2]}",
                    wrap(inner, method, is_stream=handler.request_streaming),
                )
            if is_single:
                serialize = self._noting_size(serialize, method)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(call, request_deserializer=handler.request_deserializer, response_serializer=serialize)

    def _noting_size(self, serialize: Callable[[Any], bytes], method: str) -> Callable[[Any], bytes]:
        def noting(message: Any) -> bytes:
            data = serialize(message)
            self._callers.note_size(method, len(data))
            return data

        return noting

    def _large(self, inner: Any, method: str, serialize: Callable[[Any], bytes], *, is_stream: bool) -> Any:
        async def call(requests: Any, context: Context) -> None:
            async with self._counted(method, context) as client:
                request = requests if is_stream else await _only(requests, method, context)
                await self._authorize(request, context, method)
                try:
                    async with self._callers.answer(*client, method) as send:
                        # No name for the message: it is ten times as large as its bytes, and these may wait.
                        await send(serialize(await inner(request, context)), context.write)
                except Unavailable as error:
                    await abort(error, method, context)

        return call

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
    async def _counted(self, method: str, context: Context) -> AsyncIterator[tuple[str, str, Allowance]]:
        """Counts the call as its client's while the block runs. A client that has too many gets an error.

        Yields the connection in gRPC's notation (empty: it is never closed), whose it is, and what that may do.
        """
        peer = context.auth_context()
        if list(peer.get("transport_security_type", ())) != [_TLS]:
            who = _place_of(endpoint_of(context.peer()))
            with ExitStack() as counted:
                try:
                    counted.enter_context(self._callers.call("", who, RELAY))
                except Unavailable as error:
                    await abort(error, method, context)
                yield "", who, RELAY
            return
        uris = _uris(peer)
        left = _seconds_left(peer)
        if left <= 0:
            await self._end_expired(method, context)
        is_relay = any(each.role is Role.RELAY for each in principals(uris))
        with ExitStack() as counted:
            try:
                who = ", ".join(uris) or "a certificate without a URI"
                allowance = RELAY if is_relay else MEMBER
                counted.enter_context(self._callers.call(context.peer(), who, allowance))
            except Unavailable as error:
                await abort(error, method, context)
            try:
                async with asyncio.timeout(left) as until:  # a stream may last longer than the certificate
                    yield context.peer(), who, allowance
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
