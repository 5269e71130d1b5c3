"""`flannelette call`: any method of a service, with JSON, from what the service says of itself."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass
from rich.text import Text

from flannelette.services.core.errors import Misconfigured
from flannelette.services.ctl.connect.call import LONG_SECONDS, CallFailed, channel_to
from flannelette.services.ctl.connect.reflection import Reflection, described
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.render.layout import table
from flannelette.services.ctl.render.screen import Screen, hide_secrets

_KINDS: Final = {False: "unary", True: "stream"}


async def call(
    target: Target, screen: Screen, method: str, text: str, *, describes: bool, seconds: float | None
) -> int:
    """Calls a method and prints each answer, or says what the service or the method takes.

    Raises Misconfigured: there is no such method, or the JSON is no request of it. Raises CallFailed.
    """
    async with channel_to(target) as channel:
        reflection = Reflection(channel)
        if not method:
            screen.show(await _methods(reflection, screen))
            return 0
        found = await _method(reflection, target, method)
        if describes:
            screen.show(Text(described(found)))
            return 0
        requests = _requests(found, sys.stdin.read() if text in ("-", "@") else text, reflection)
        limit = seconds or (None if found.server_streaming else LONG_SECONDS)
        try:
            async with asyncio.timeout(limit) if limit else nullcontext():
                async for answer in _answers(channel, found, requests):
                    document = MessageToDict(
                        answer, preserving_proto_field_name=True, descriptor_pool=reflection.pool
                    )
                    screen.show_json(hide_secrets(document), one_line=found.server_streaming)
        except TimeoutError:
            raise CallFailed(f"{target.program} has not ended {found.name} within {limit:g} s") from None
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED):
                raise  # what is wrong with the address is found out
            raise CallFailed(f"{error.code().name}: {error.details()}", reached=True) from None
    return 0


async def _methods(reflection: Reflection, screen: Screen) -> Text:
    """A row for each method of each service."""
    rows = []
    for name in await reflection.services():
        for each in (await reflection.service(name)).methods:
            streams = {True: "stream of ", False: ""}
            takes = f"{streams[each.client_streaming]}{each.input_type.name}"
            gives = f"{streams[each.server_streaming]}{each.output_type.name}"
            rows.append(((name,), (each.name,), (takes,), (gives,)))
    return table(("SERVICE", "METHOD", "REQUEST", "ANSWER"), rows, screen.width)


async def _method(reflection: Reflection, target: Target, name: str) -> Any:
    """The descriptor of a method, `GetStatus` or `grpc.health.v1.Health/Check`. Raises Misconfigured."""
    services = await reflection.services()
    service, _, short = name.replace("/", ".").rpartition(".")
    if not service:
        service = next((each for each in services if each.startswith(f"flannelette.{target.service}.")), services[0])
    if service not in services:
        raise Misconfigured(f"{target.program} has no service {service!r}; it has: {', '.join(services)}")
    methods = (await reflection.service(service)).methods_by_name
    if short in methods:
        return methods[short]
    lower = {each.lower(): each for each in methods}
    meant = [lower[each] for each in get_close_matches(short.lower(), lower, 1)]
    hint = f"did you mean {meant[0]}?" if meant else f"it has: {', '.join(methods)}"
    raise Misconfigured(f"{service} has no method {short!r}; {hint}")


def _requests(method: Any, text: str, reflection: Reflection) -> list[Any]:
    """The messages of a text of one JSON object, or of several for a stream. Raises Misconfigured."""
    decoder, documents, left = json.JSONDecoder(), [], text.strip()
    try:
        while left:
            document, end = decoder.raw_decode(left)
            documents.append(document)
            left = left[end:].lstrip()
    except ValueError as error:
        raise Misconfigured(f'this is not JSON: {error}; write an object such as \'{{"name": "h2"}}\'') from None
    if not method.client_streaming:
        documents = documents or [{}]
        if len(documents) > 1:
            raise Misconfigured(f"{method.name} takes one request, and this is {len(documents)}")
    kind, name = GetMessageClass(method.input_type), method.input_type.name
    try:
        for document in documents:
            if not isinstance(document, dict):
                raise Misconfigured(f"a request is a JSON object: write {{...}}, as `--describe` shows {name}")
        return [ParseDict(document, kind(), descriptor_pool=reflection.pool) for document in documents]
    except ParseError as error:
        what = str(error).partition("\n")[0]  # the next line is a list as Python writes it
        raise Misconfigured(f"this is no {name}: {what}; `--describe` shows its fields") from None


async def _answers(channel: Any, method: Any, requests: Sequence[Any]) -> AsyncIterator[Any]:
    kind = f"{_KINDS[method.client_streaming]}_{_KINDS[method.server_streaming]}"
    answer = GetMessageClass(method.output_type)
    invoke = getattr(channel, kind)(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(requests[0]).SerializeToString if requests else None,
        response_deserializer=answer.FromString,
    )
    called = invoke(iter(requests) if method.client_streaming else requests[0])
    if method.server_streaming:
        async for each in called:
            yield each
    else:
        yield await called
