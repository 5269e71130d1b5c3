"""The pages of the site about gRPC: what the comments of the .proto files say, symbol by symbol."""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from google.protobuf import descriptor_pb2 as pb

from tests.paths import ROOT

SERVICES: Final = {"lease": "Lease service", "dataplane": "Dataplane", "masq": "masq", "cloud": "Routes in a cloud"}
_MESSAGE, _ENUM, _SERVICE, _PACKAGE = 4, 5, 6, 2
"""Field numbers of FileDescriptorProto, which paths of comments start with."""
_FIELD, _NESTED, _NESTED_ENUM, _VALUE, _METHOD = 2, 3, 4, 2, 2
_TYPES: Final = {number: name.removeprefix("TYPE_").lower() for name, number in pb.FieldDescriptorProto.Type.items()}


def pages() -> dict[str, str]:
    """The text of each page, by its name in the site."""
    return {f"api/{name}.md": "\n".join(_Page(file, title).lines()) + "\n" for name, title, file in _files()}


def _files() -> Iterator[tuple[str, str, pb.FileDescriptorProto]]:
    sources = {f"flannelette/{name}/v1/{name}.proto": name for name in SERVICES}
    with TemporaryDirectory() as folder:
        out = Path(folder, "set")
        words = ["-Iproto", "--include_source_info", f"--descriptor_set_out={out}", *sources]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], check=True, cwd=ROOT)
        found = pb.FileDescriptorSet.FromString(out.read_bytes())
    for file in found.file:
        name = sources[file.name]
        yield name, SERVICES[name], file


class _Page:
    """The page of one file."""

    def __init__(self, file: pb.FileDescriptorProto, title: str) -> None:
        self._file, self._title = file, title
        self._comments = {tuple(each.path): each for each in file.source_code_info.location}
        self._package = f".{file.package}."

    def lines(self) -> Iterator[str]:
        """Markdown."""
        yield f"# gRPC: {self._title}\n"
        (syntax,) = (each for path, each in self._comments.items() if path == (_PACKAGE,))
        head = [*syntax.leading_detached_comments, syntax.leading_comments]
        yield from (_markdown(each) for each in head if each)
        yield f"\nMade from `proto/{self._file.name}`. [Asking with grpcurl](../grpcurl.md) has examples.\n"
        for number, service in enumerate(self._file.service):
            yield f"## {service.name}\n\n{self._said(_SERVICE, number)}\n"
            for place, method in enumerate(service.method):
                yield from self._method(method, (_SERVICE, number, _METHOD, place))
        yield "## Messages\n"
        for number, message in enumerate(self._file.message_type):
            yield from self._message(message, (_MESSAGE, number), "")
        if self._file.enum_type:
            yield "## Enumerations\n"
        for number, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, (_ENUM, number), "")

    def _method(self, method: pb.MethodDescriptorProto, path: Sequence[int]) -> Iterator[str]:
        asked = f"{'stream of ' if method.client_streaming else ''}{self._link(method.input_type)}"
        answered = f"{'stream of ' if method.server_streaming else ''}{self._link(method.output_type)}"
        yield f"### {method.name}\n\n{asked} → {answered}\n\n{self._said(*path)}\n"

    def _message(self, message: pb.DescriptorProto, path: Sequence[int], outer: str) -> Iterator[str]:
        yield f"### {outer}{message.name}\n\n{self._said(*path)}\n"
        maps = {each.name: each for each in message.nested_type if each.options.map_entry}
        for number, field in enumerate(message.field):
            kind = self._kind(field, maps)
            yield f"`{field.name}` — {kind}\n\n{_indented(self._said(*path, _FIELD, number))}\n"
        for number, nested in enumerate(message.nested_type):
            if nested.name not in maps:
                yield from self._message(nested, (*path, _NESTED, number), f"{outer}{message.name}.")
        for number, enum in enumerate(message.enum_type):
            yield from self._enum(enum, (*path, _NESTED_ENUM, number), f"{outer}{message.name}.")

    def _enum(self, enum: pb.EnumDescriptorProto, path: Sequence[int], outer: str) -> Iterator[str]:
        yield f"### {outer}{enum.name}\n\n{self._said(*path)}\n"
        for number, value in enumerate(enum.value):
            yield f"`{value.name}` = {value.number}\n\n{_indented(self._said(*path, _VALUE, number))}\n"

    def _kind(self, field: pb.FieldDescriptorProto, maps: dict[str, pb.DescriptorProto]) -> str:
        if pair := maps.get(field.type_name.rpartition(".")[2]):
            key, value = (self._kind(each, {}) for each in pair.field)
            return f"map of {key} to {value}"
        name = self._link(field.type_name) if field.type_name else _TYPES[field.type]
        words: Iterable[str] = (
            "repeated" if field.label == pb.FieldDescriptorProto.LABEL_REPEATED else "",
            "optional" if field.proto3_optional else "",
            name,
            "(one of several)" if field.HasField("oneof_index") and not field.proto3_optional else "",
        )
        return " ".join(filter(None, words))

    def _link(self, full_name: str) -> str:
        """A type, with a link if it is of this page."""
        if not full_name.startswith(self._package):
            return f"`{full_name.removeprefix('.')}`"
        name = full_name.removeprefix(self._package)
        return f"[{name}](#{name.lower().replace('.', '')})"

    def _said(self, *path: int) -> str:
        found = self._comments.get(path)
        return _markdown(found.leading_comments or found.trailing_comments) if found else ""


def _markdown(comment: str) -> str:
    """A comment as paragraphs and lists."""
    lines = [line.removeprefix(" ").replace("<", "&lt;") for line in comment.rstrip().splitlines()]
    text = ""
    for before, line in zip(["", *lines], lines, strict=False):
        begins = line.startswith("* ") and before and not before.startswith(("* ", "  "))
        text += ("\n" if begins else "") + line + "\n"
    return text.strip()


def _indented(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())
