"""A channel to a service: its calls name the network that they are about, and no text of an answer ends a line.

The ends of lines are hidden (`services/core/formats/visible.py`) before anything is laid out, and shown as escapes by
the screen, so that nothing from outside begins a line of its own; in requests, and as JSON, texts are as the service
has them.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, cast

import grpc.aio
from google.protobuf.message import Message

from flannelette.services.core.formats.visible import hide_line_ends, show_line_ends


def on_one_line(channel: grpc.aio.Channel) -> grpc.aio.Channel:
    """Returns a channel whose answers have each text on one line."""
    return cast(grpc.aio.Channel, _OneLineChannel(channel))


class _OneLineChannel:
    """The part of a channel that generated stubs and `channel_to` use."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> "_OneLineChannel":
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._channel.__aexit__(*failure)

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **more: Any) -> Any:
        """See grpc.aio."""
        return self._channel.unary_unary(method, _written(request_serializer), _read(response_deserializer), **more)

    def unary_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **more: Any) -> Any:
        """See grpc.aio."""
        return self._channel.unary_stream(method, _written(request_serializer), _read(response_deserializer), **more)


def _read(parse: Callable[[bytes], Message]) -> Callable[[bytes], Message]:
    def read(data: bytes) -> Message:
        message = parse(data)
        change_texts(message, hide_line_ends)
        return message

    return read


def _written(serialize: Callable[[Message], bytes]) -> Callable[[Message], bytes]:
    def write(message: Message) -> bytes:
        shown = type(message)()
        shown.CopyFrom(message)
        change_texts(shown, show_line_ends)
        return serialize(shown)

    return write


def change_texts(message: Message, change: Callable[[str], str]) -> None:
    """Changes every text in the message, however deep."""
    for field, value in message.ListFields():
        if isinstance(value, str):
            if (changed := change(value)) != value:
                setattr(message, field.name, changed)
        elif isinstance(value, Message):
            change_texts(value, change)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            _change_map(value, change)
        elif field.message_type is not None:
            for each in value:
                change_texts(each, change)
        elif field.type == field.TYPE_STRING:
            value[:] = [change(each) for each in value]


def _change_map(value: MutableMapping[Any, Any], change: Callable[[str], str]) -> None:
    for key in [*value]:
        of_key = value[key]
        if isinstance(of_key, Message):
            change_texts(of_key, change)
        elif isinstance(key, str) and isinstance(of_key, str):
            del value[key]
            value[change(key)] = change(of_key)


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
