"""What a server says of itself by gRPC reflection: its services, and the messages that they take and give."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import grpc.aio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from flannelette.services.ctl.connect.call import CallFailed

_TYPES: Final = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool"}
_TYPES.update({9: "string", 12: "bytes", 13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64"})
"""The words of a .proto file for FieldDescriptor.type; messages and enums have names of their own."""


class Reflection:
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


def described(method: Any) -> str:
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
