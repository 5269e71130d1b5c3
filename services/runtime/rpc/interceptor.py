"""The mapping between our errors and gRPC status codes, for servers and clients."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from flannelette.services.core import errors
from flannelette.services.core.frozen import frozen
from flannelette.services.runtime.networks import DEFAULT
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

T = TypeVar("T")

CODES: Final[dict[type[errors.FlanneletteError], grpc.StatusCode]] = {
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.NotYet: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Exhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.LostRace: grpc.StatusCode.ABORTED,
    errors.Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotImplementedYet: grpc.StatusCode.UNIMPLEMENTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
}
_ERRORS: Final = {code: kind for kind, code in CODES.items()}


def code_of(error: errors.FlanneletteError) -> grpc.StatusCode:
    """The status code of an error: that of its nearest base class in the table."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), grpc.StatusCode.UNKNOWN)


def error_of(error: grpc.aio.AioRpcError) -> errors.FlanneletteError:
    """The error for a status; a code without an error of ours (deadline, cancellation) is Unavailable."""
    kind = _ERRORS.get(error.code(), errors.Unavailable)
    return kind(error.details() or error.code().name)


def readable(answer: T | None) -> T:
    """A server's answer. Raises Unavailable for a malformed message, which grpc returns as None."""
    if answer is None:
        raise errors.Unavailable(
            "the server sent a message that this version cannot read: compare the versions of client and server"
        )
    return answer


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call with the status code of a FlanneletteError; other exceptions are logged and become INTERNAL.

    A request that names another network than the process serves is refused, and answers with a field `network` say
    which that is.
    """

    def __init__(self, network: str = "") -> None:
        self._network = network

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wraps unary-unary and unary-stream handlers: our services have no others."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.request_streaming or not method.startswith("/flannelette."):
            return handler
        wrap = _wrap_stream if handler.response_streaming else _wrap_unary
        make = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        inner = handler.unary_stream if handler.response_streaming else handler.unary_unary
        return make(
            wrap(inner, method, self._network),
            request_deserializer=_or_unreadable(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )


@frozen
class _Unreadable:
    """Bytes that cannot be parsed as a request of the method."""

    reason: str


def _or_unreadable(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """The deserializer, but malformed bytes become INVALID_ARGUMENT; gRPC alone would answer UNKNOWN."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data) if deserialize else data
        except DecodeError as error:
            return _Unreadable(str(error))

    return read


def refuse_other(name: str, served: str) -> None:
    """Raises NotFound: a request means the network `name`, and the process serves `served`, which may be empty."""
    if name and name != served and (name != DEFAULT or served):
        here = f"serves the network {served}" if served else "serves the network without a name"
        raise errors.NotFound(
            f"there is no network {name!r} here: this process {here}; each network has a process of its own"
        )


def _meant(request: Any, network: str) -> Any:
    """The request. Raises InvalidInput: it cannot be read; NotFound: it means another network."""
    if isinstance(request, _Unreadable):
        raise errors.InvalidInput(f"the request cannot be read ({request.reason}): is its text UTF-8?")
    if isinstance(name := getattr(request, "network", None), str):
        refuse_other(name, network)
    return request


def _told(answer: Any, network: str) -> Any:
    """The answer, which says whose it is."""
    if network and isinstance(getattr(answer, "network", None), str):
        answer.network = network
        if hasattr(answer, "networks"):
            answer.networks[:] = [network]
    return answer


def _wrap_unary(inner: Any, method: str, network: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return _told(await inner(_meant(request, network), context), network)
        except Exception as error:
            await abort(error, method, context)

    return call


def _wrap_stream(inner: Any, method: str, network: str) -> Any:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            # Closed here, not by the garbage collector, so that the stream's resources are free when the call ends.
            async with aclosing(inner(_meant(request, network), context)) as responses:
                async for response in responses:
                    # Not yield: another generator would slow each message down.
                    await context.write(_told(response, network))
        except Exception as error:
            await abort(error, method, context)

    return call


async def abort(error: Exception, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Ends the call with the status of the error; never returns."""
    if isinstance(error, errors.FlanneletteError):
        await context.abort(code_of(error), str(error))
    if isinstance(error, grpc.aio.AbortError):
        raise error
    log.error("a call failed unexpectedly", method=method, exc_info=error)
    await context.abort(
        grpc.StatusCode.INTERNAL, f"internal error ({type(error).__name__}); the service's log has more"
    )
