"""An etcd that lies: a real one behind a proxy, which changes the answers that a test wants changed."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from flannelette.services.lease.stores.etcd.client import rpc

Lie = Callable[[bytes], bytes]
_STREAMS = ("Watch", "LeaseKeepAlive")


class Liar(grpc.GenericRpcHandler):
    """`lies` has what is made of the answers to a method, by its name: `Range`, `Txn`, `Watch`."""

    def __init__(self, upstream: grpc.aio.Channel) -> None:
        self.lies: dict[str, Lie] = {}
        self.told = 0
        """How many answers were changed."""
        self._upstream = upstream

    def service(self, handler_call_details: Any) -> Any:
        path: str = handler_call_details.method
        name = path.rpartition("/")[2]
        if name in _STREAMS:
            return grpc.stream_stream_rpc_method_handler(self._stream(path, name))
        return grpc.unary_unary_rpc_method_handler(self._unary(path, name))

    def _made_of(self, name: str, answer: bytes) -> bytes:
        if name not in self.lies:
            return answer
        self.told += 1
        return self.lies[name](answer)

    def _unary(self, path: str, name: str) -> Any:
        async def call(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            try:
                forward: Any = self._upstream.unary_unary(path)
                return self._made_of(name, await forward(request))
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")

        return call

    def _stream(self, path: str, name: str) -> Any:
        async def call(requests: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
            try:
                forward: Any = self._upstream.stream_stream(path)
                async for answer in forward(requests):
                    yield self._made_of(name, answer)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")

        return call


@asynccontextmanager
async def lying(endpoint: str) -> AsyncIterator[tuple[Liar, str]]:
    """The proxy before the etcd at this URL, and its own URL."""
    async with grpc.aio.insecure_channel(endpoint.removeprefix("http://")) as upstream:
        server, liar = grpc.aio.server(), Liar(upstream)
        server.add_generic_rpc_handlers((liar,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield liar, f"http://127.0.0.1:{port}"
        finally:
            await server.stop(None)


def nothing(answer: bytes) -> bytes:
    """A message in which every field is missing."""
    return b""


def garbage(answer: bytes) -> bytes:
    """No message."""
    return b"\xff" * 40


def more_without_keys(answer: bytes) -> bytes:
    """A listing that goes on and never ends."""
    message = rpc.RangeResponse.FromString(answer)
    del message.kvs[:]
    message.more = True
    return bytes(message.SerializeToString())


def the_same_keys_again(answer: bytes) -> bytes:
    """A listing whose every page is the first one."""
    message = rpc.RangeResponse.FromString(answer)
    for _ in range(2):
        message.kvs.add(key=b"/net/config", value=b"{}", mod_revision=1, create_revision=1)
    message.more = True
    return bytes(message.SerializeToString())


def keys_of_others(answer: bytes) -> bytes:
    """Keys that lie outside of what was asked for."""
    message = rpc.RangeResponse.FromString(answer)
    message.kvs.add(key=b"\x00", value=b"x", mod_revision=1, create_revision=1)
    return bytes(message.SerializeToString())


def revision_of(revision: int) -> Lie:
    """An answer of this revision, with a key of the last revision that there can be."""

    def lie(answer: bytes) -> bytes:
        message = rpc.RangeResponse.FromString(answer)
        message.header.revision = revision
        return bytes(message.SerializeToString())

    return lie


def event_of(revision: int) -> Lie:
    """A watch that tells of a key of this revision."""

    def lie(answer: bytes) -> bytes:
        message = rpc.WatchResponse.FromString(answer)
        event = message.events.add()
        event.kv.key, event.kv.mod_revision = b"/net/subnets/x", revision
        return bytes(message.SerializeToString())

    return lie


def watch_at(revision: int) -> Lie:
    """A watch at this revision, which is a message of progress."""

    def lie(answer: bytes) -> bytes:
        message = rpc.WatchResponse.FromString(answer)
        message.header.revision = revision
        return bytes(message.SerializeToString())

    return lie


def lasts(seconds: int) -> Lie:
    """An etcd lease that lives as long."""

    def lie(answer: bytes) -> bytes:
        message = rpc.LeaseGrantResponse.FromString(answer)
        message.TTL = seconds
        return bytes(message.SerializeToString())

    return lie
