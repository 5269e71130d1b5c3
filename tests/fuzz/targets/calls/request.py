"""How a case becomes a call of a service: the name of a method, a line feed, and the request's bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import cache
from typing import Any, Final, cast
from zlib import crc32

from google.protobuf.message import DecodeError

from flannelette.cloud.v1 import cloud_pb2
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.errors import FlanneletteError, NotFound
from flannelette.services.runtime.rpc.interceptor import refuse_other
from tests.virtual_time import VirtualLoop

_SERVICES: Final[dict[str, tuple[Any, str]]] = {
    "lease": (lease_pb2, "LeaseService"),
    "dataplane": (dataplane_pb2, "DataplaneService"),
    "masq": (masq_pb2, "MasqService"),
    "cloud": (cloud_pb2, "CloudService"),
}
_NETWORK: Final = "blue"
_STREAM: Final = 3
"""Messages of a stream that are looked at."""
_PATIENCE: Final = 2.0
"""Seconds of the virtual clock for the next one."""


class _Context:
    """A call over a unix socket."""

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return {}


@cache
def methods(service: str) -> dict[str, Any]:
    """The class of the request, by the method's name."""
    package, name = _SERVICES[service]
    return {method.name: getattr(package, method.input_type.name) for method in service_of(package, name)}


def service_of(package: Any, name: str) -> Any:
    return package.DESCRIPTOR.services_by_name[name].methods


def request_in(service: str, data: bytes) -> tuple[str, Any] | None:
    """What is called with what; where the name is none, some method."""
    known = methods(service)
    name, _, body = data.partition(b"\n")
    chosen = name.decode(errors="replace")
    if chosen not in known:
        chosen = sorted(known)[crc32(name) % len(known)]
    try:
        return chosen, known[chosen].FromString(body)
    except DecodeError:
        return None


def shaped_request(service: str, data: bytes) -> tuple[bytes, Any] | None:
    """The method's name with the line feed, and the request."""
    found = request_in(service, data)
    return (f"{found[0]}\n".encode(), found[1]) if found else None


async def answers(method: Callable[..., Any], request: Any) -> list[Any]:
    """What a call answers, or what its stream begins with; last the error that is meant for the caller."""
    found = list[Any]()
    try:
        call = method(request, _Context())
        if isinstance(call, AsyncIterator):
            async with aclosing(cast("Any", call)) as stream:
                while len(found) < _STREAM:
                    found.append(await asyncio.wait_for(anext(stream), _PATIENCE))
        else:
            found.append(await call)
    except FlanneletteError as error:
        str(error).encode()
        found.append(error)
    except (StopAsyncIteration, TimeoutError):
        pass
    for message in found:
        if not isinstance(message, bytes | FlanneletteError):
            message.SerializeToString()
    return found


async def asked_of_network(servicer: Any, method: str, request: Any) -> None:
    """Calls the servicer of a process that serves the network blue, as its server does.

    Another name is refused; then the call is made without one, so that the other fields are read too.
    """
    if request.network not in ("", _NETWORK):
        try:
            refuse_other(request.network, _NETWORK)
        except NotFound as refused:
            str(refused).encode()
        else:
            raise AssertionError(request.network)
        request.network = ""
    await answers(getattr(servicer, method), request)


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner(loop_factory=VirtualLoop)


def run(case: Coroutine[Any, Any, None]) -> None:
    """In the one loop of all cases; without what Runner.run does about Ctrl-C, which takes as long as many a case."""
    _runner().get_loop().run_until_complete(case)
