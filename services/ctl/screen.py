"""Output of the command line: to a terminal, a pipe or a file, as text, JSON or YAML."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from io import TextIOWrapper
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.text import Text

from flannelette.services.core.backend_types import SECRETS
from flannelette.services.core.formats.gojson import without_secrets
from flannelette.services.core.formats.text import escape, is_visible, visible
from flannelette.services.ctl.layout import Width

_LONG: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
"""Which protobuf's JSON has as text."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Standard output of a command. Colours only on a terminal, and not with NO_COLOR; text is never cut."""

    output: str
    """The format: what `-o` says."""
    console: Console
    write_yaml: Callable[..., str] | None = None
    """They are shown as YAML, which this writes; None: as JSON."""
    network: str = ""
    """Which of several is shown."""

    def of_network(self, name: str) -> "Screen":
        """Returns a screen for what is about one of several networks, below a heading; an empty name:
        there is one.
        """
        if name and not self.json:
            self.show(Text(f"--- network {name} ---", style="bold"))
        return replace(self, network=name)

    @property
    def json(self) -> bool:
        """Whether the documents of the services are shown, not text."""
        return self.output in ("json", "yaml")

    @property
    def wide(self) -> bool:
        """Whether tables have all their columns."""
        return self.output == "wide"

    @property
    def width(self) -> Width:
        """Columns of the terminal; None if this is a pipe or a file."""
        return self.console.width if self.console.file.isatty() else None

    @property
    def _is_unicode(self) -> bool:
        return self.console.encoding.startswith("utf")

    def show(self, text: Text) -> None:
        """Prints the text at once, without control characters."""
        self.console.print(harmless(text), soft_wrap=True)
        self.console.file.flush()

    def show_json(self, document: Any, *, one_line: bool = False) -> None:
        """Prints one document, as JSON indented unless it shall be one line."""
        if self.network:
            document = {"network": self.network, **document}
        indent = None if one_line else 2
        written = json.dumps(document, ensure_ascii=False, indent=indent)
        text = visible(written, keeps="\n")  # which JSON has between values alone
        if self.write_yaml is not None:
            plain = json.loads(text)  # safe_dump refuses what json takes, such as a StrEnum
            starts = one_line or bool(self.network)
            is_plain = self._is_unicode and text == written
            text = self.write_yaml(plain, sort_keys=False, allow_unicode=is_plain, explicit_start=starts, width=2**31)
            print(text, end="", file=self.console.file, flush=True)
            return
        if not self._is_unicode:
            text = json.dumps(json.loads(text), indent=indent)
        print(text, file=self.console.file, flush=True)

    def answer(self, message: Message, text: Callable[[], Text]) -> None:
        """Prints the answer of a service: with `-o json` the message, else its text."""
        if self.json:
            self.show_json(to_json(message))
        else:
            self.show(text())

    def warn(self, sentence: str) -> None:
        """Prints a sentence on standard error, so that standard output stays parsable."""
        print(f"flannelette: {visible(sentence)}", file=sys.stderr, flush=True)


def harmless(text: Text) -> Text:
    """The text with escapes for everything that is not visible; its own lines stay.

    The ends of lines that came from outside are hidden before this, and are escapes here.
    """
    if visible(text.plain, keeps="\n") == text.plain:
        return text
    shown, start = text.blank_copy(), 0
    for index, character in enumerate(text.plain):
        if character != "\n" and not is_visible(character):
            shown.append_text(text[start:index]).append(escape(character))
            start = index + 1
    return shown.append_text(text[start:])


def screen(output: str) -> Screen:
    """Standard output, in the format that `-o` says. What the locale's encoding lacks is shown as `?`."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False, emoji=False, markup=False)
    return Screen(output, console, write_yaml=_yaml_writer() if output == "yaml" else None)


def _yaml_writer() -> Callable[..., str]:
    """Returns a function like yaml.safe_dump that writes a text of several lines on one, in quotes."""
    import yaml  # takes as long as rich

    class Dumper(yaml.SafeDumper):
        """One that writes no text over several lines."""

    def write(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = None if visible(text) == text else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, write)
    return lambda document, **options: yaml.dump(document, Dumper=Dumper, **options)


def to_json(message: Message) -> Any:
    """The message for programs: every field, named as in the .proto files, except those that are not known.

    Numbers are numbers, also those of 64 bits; enums are their names without the prefix of the type: `PROGRAMMED`.
    Keys and passwords in the network configuration are hidden.
    """
    document = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    for field in message.DESCRIPTOR.fields:
        if field.name in document:
            document[field.name] = _plain(document[field.name], field)
    return hide_secrets(document)


def hide_secrets(document: dict[str, Any]) -> dict[str, Any]:
    """Hides keys and passwords in the network configuration of a message, which is changed, and returns that."""
    network = document.get("network")
    if isinstance(network, dict) and "json" in network:
        network["json"] = without_secrets(network["json"], SECRETS)
    return document


def _plain(value: Any, field: Any) -> Any:
    """The value of a field, or of an element of it, as this module shows it."""
    if isinstance(value, list):
        return [_plain(each, field) for each in value]
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {key: _plain(each, kind.fields_by_name["value"]) for key, each in value.items()}
    if kind is not None and isinstance(value, dict):
        known = kind.fields_by_name
        return {name: _plain(each, known[name]) if name in known else each for name, each in value.items()}
    if field.enum_type is not None:
        return str(value).removeprefix(_prefix(field.enum_type.name))
    return int(value) if isinstance(value, str) and field.cpp_type in _LONG else value


@cache
def _prefix(enum: str) -> str:
    """What the names of an enum's values begin with: `PEER_STATE_` of PeerState."""
    return re.sub(r"(?<=.)(?=[A-Z])", "_", enum).upper() + "_"
