"""`flannelette call`: any method of a service, with JSON, from what the service says of itself by gRPC reflection."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from json import JSONDecoder
from typing import Any, Final

import click
import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from rich.text import Text

from flannelette.services.core.errors import Misconfigured
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import LONG_SECONDS, CallFailed, channel_to
from flannelette.services.ctl.connect.contexts import Nodes, one_of
from flannelette.services.ctl.connect.targets import Service, Target, with_cloud
from flannelette.services.ctl.options import Duration
from flannelette.services.ctl.screen import Screen, hide_secrets, table

_KINDS: Final = {False: "unary", True: "stream"}


_TYPES: Final[Mapping[int, str]] = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}
"""The words of a .proto file for FieldDescriptor.type; messages and enums have names of their own."""


class _Reflection:
    """The descriptors of a server, which are fetched as they are asked for."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._files: dict[str, FileDescriptorProto] = {}
        self.pool = DescriptorPool()

    async def services(self) -> list[str]:
        """The full names of the services."""
        answer = await self._ask(ServerReflectionRequest(list_services="*"))
        return [each.name for each in answer.list_services_response.service]

    async def service(self, name: str) -> Any:
        """The descriptor of a service. Raises CallFailed: the server does not know it."""
        await self._fetch(ServerReflectionRequest(file_containing_symbol=name))
        return self.pool.FindServiceByName(name)

    async def _fetch(self, request: ServerReflectionRequest) -> None:
        """Adds a file and those that it imports to the pool, each after what it imports."""
        answer = await self._ask(request)
        fetched = [
            FileDescriptorProto.FromString(each) for each in answer.file_descriptor_response.file_descriptor_proto
        ]
        fresh = {each.name: each for each in fetched if each.name not in self._files}
        self._files |= fresh
        for each in fresh.values():
            for imported in each.dependency:
                if imported not in self._files:
                    await self._fetch(ServerReflectionRequest(file_by_filename=imported))
        added = set[str]()

        def add(file: FileDescriptorProto) -> None:
            for imported in file.dependency:
                if imported in fresh and imported not in added:
                    add(fresh[imported])
            if file.name not in added:
                added.add(file.name)
                self.pool.Add(file)

        for each in fresh.values():
            add(each)

    async def _ask(self, request: ServerReflectionRequest) -> ServerReflectionResponse:
        async def one() -> AsyncIterator[ServerReflectionRequest]:
            yield request

        answers = [each async for each in ServerReflectionStub(self._channel).ServerReflectionInfo(one())]
        if not answers or answers[0].HasField("error_response"):
            raise CallFailed(answers[0].error_response.error_message if answers else "no answer", reached=True)
        return answers[0]


def _text_of(_context: click.Context, _parameter: click.Parameter, json: str) -> str:
    """The request: read here, where one Ctrl-C ends the waiting for it, and not while a loop of asyncio runs."""
    return sys.stdin.read() if json in ("-", "@") else json


@command(
    scope="every",
    formats=("json", "yaml"),
    until_ctrl_c=True,
    examples=(
        "flannelette call dataplane",
        "flannelette call dataplane ListPeers --describe",
        """flannelette call dataplane ListPeers '{"name": "h2", "look": true}'""",
    ),
)
@click.argument("service", type=click.Choice(["lease", "dataplane", "masq", "cloud"]), metavar="SERVICE")
@click.argument("method", required=False, default="")
@click.argument("json", required=False, default="", callback=_text_of)
@click.option("--describe", is_flag=True, help="Show what METHOD takes and gives, as in a .proto file.")
@click.option(
    "--timeout",
    type=Duration(plain=1, least=0.001),
    metavar="DURATION",
    help="Longest time: 2s, 2m; a number is of seconds.  [default: 60s; none for a stream]",
)
async def call(
    nodes: Nodes,
    screen: Screen,
    service: Service,
    method: str,
    json: str,
    describe: bool,
    timeout: float | None,
) -> int:
    """Call a method of a service, as grpcurl does.

    SERVICE is lease, dataplane, masq or cloud. METHOD is a name such as
    GetStatus, or one with its service (grpc.health.v1.Health/Check); without
    METHOD the list of all. JSON is the request, {} if there is none; - reads it
    from standard input. What a method takes the service says itself, also one of
    another release. A stream prints an answer a line, until Ctrl-C.

    Exits with 1 if the service answers with an error, whose code comes first.
    """
    targets = one_of(nodes, any_will_do=service in ("lease", "cloud"))
    target = with_cloud(targets, is_asked=service == "cloud").get(service)
    if target is None:
        raise click.UsageError("flannelette-cloud is asked on its host, by its socket: run this command there")
    async with channel_to(target) as channel:
        reflection = _Reflection(channel)
        if not method:
            screen.show(await _methods(reflection, screen))
            return 0
        found = await _method(reflection, target, method)
        if describe:
            screen.show(Text(_described(found)))
            return 0
        requests = _requests(found, json, reflection)
        limit = timeout or (None if found.server_streaming else LONG_SECONDS)
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


async def _methods(reflection: _Reflection, screen: Screen) -> Text:
    """A row for each method of each service."""
    rows = []
    for name in await reflection.services():
        for each in (await reflection.service(name)).methods:
            streams = {True: "stream of ", False: ""}
            takes = f"{streams[each.client_streaming]}{each.input_type.name}"
            gives = f"{streams[each.server_streaming]}{each.output_type.name}"
            rows.append(((name,), (each.name,), (takes,), (gives,)))
    return table(("SERVICE", "METHOD", "REQUEST", "ANSWER"), rows, screen.width)


async def _method(reflection: _Reflection, target: Target, name: str) -> Any:
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


def _requests(method: Any, text: str, reflection: _Reflection) -> list[Any]:
    """The messages of a text of one JSON object, or of several for a stream. Raises Misconfigured."""
    decoder, documents, left = JSONDecoder(), [], text.strip()
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


def _described(method: Any) -> str:
    """The method, and every message and enum that it takes or gives, as in a .proto file."""
    words = {True: "stream ", False: ""}
    takes, gives = method.input_type, method.output_type
    out = [
        f"rpc {method.name}({words[method.client_streaming]}{takes.name}) "
        f"returns ({words[method.server_streaming]}{gives.name});"
    ]
    return "\n\n".join([*out, *map(_body, _reached([takes, gives]))])


def _reached(first: Iterable[Any]) -> Iterator[Any]:
    """The messages and enums of the same project, in the order in which fields name them."""
    waiting, seen = [*first], set[str]()
    while waiting:
        kind = waiting.pop(0)
        if kind.full_name in seen or kind.full_name.startswith("google."):
            continue
        seen.add(kind.full_name)
        is_entry = hasattr(kind, "fields") and kind.GetOptions().map_entry
        if not is_entry:
            yield kind
        for field in getattr(kind, "fields", ()):
            waiting += [each for each in (field.message_type, field.enum_type) if each is not None]


def _body(kind: Any) -> str:
    if not hasattr(kind, "fields"):
        values = "".join(f"  {each.name} = {each.number};\n" for each in kind.values)
        return f"enum {kind.name} {{\n{values}}}"
    fields = "".join(f"  {_field(each)};\n" for each in kind.fields)
    return f"message {kind.name} {{\n{fields}}}" if fields else f"message {kind.name} {{}}"


def _field(field: Any) -> str:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = (_type(kind.fields_by_name[name]) for name in ("key", "value"))
        return f"map<{key}, {value}> {field.name} = {field.number}"
    is_optional = field.has_presence and kind is None and not field.containing_oneof
    is_optional |= bool(field.containing_oneof) and len(field.containing_oneof.fields) == 1
    label = "repeated " if field.is_repeated else "optional " if is_optional else ""
    return f"{label}{_type(field)} {field.name} = {field.number}"


def _type(field: Any) -> str:
    kind = field.message_type or field.enum_type
    if kind is None:
        return _TYPES.get(field.type, "?")
    return str(kind.full_name if kind.full_name.startswith("google.") else kind.name)
