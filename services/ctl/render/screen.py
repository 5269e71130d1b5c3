"""Output of the command line: to a terminal, a pipe or a file, as text, JSON or YAML."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import TextIOWrapper
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.text import Text

from services.core.backend_types import SECRETS
from services.core.formats.gojson import without_secrets
from services.ctl.render.layout import Width

# Names and reasons come from other nodes: control characters are replaced, so that none reaches the terminal.
_HARMLESS: Final = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code != ord("\n")}


@dataclass(frozen=True, slots=True)
class Screen:
    """Standard output of a command. Colours only on a terminal, and not with NO_COLOR; text is never cut."""

    json: bool
    """The documents of the services are shown, not text."""
    console: Console
    write_yaml: Callable[..., str] | None = None
    """They are shown as YAML, which this writes; None: as JSON."""
    wide: bool = False
    """Tables have all their columns."""
    network: str = ""
    """Which of several is shown."""

    def of_network(self, name: str) -> "Screen":
        """For what is about one of several networks, below a heading; empty: there is one."""
        if name and not self.json:
            self.show(Text(f"--- network {name} ---", style="bold"))
        return replace(self, network=name)

    @property
    def width(self) -> Width:
        """Columns of the terminal; None if this is a pipe or a file."""
        return self.console.width if self.console.file.isatty() else None

    @property
    def _is_unicode(self) -> bool:
        return self.console.encoding.startswith("utf")

    def show(self, text: Text) -> None:
        """Prints the text."""
        self.console.print(harmless(text), soft_wrap=True)
        self.console.file.flush()

    def show_json(self, document: Any, *, one_line: bool = False) -> None:
        """Prints one document, as JSON indented unless it shall be one line."""
        if self.network:
            document = {"network": self.network, **document}
        if self.write_yaml is not None:
            plain = json.loads(json.dumps(document))  # safe_dump refuses what json takes, such as a StrEnum
            starts = one_line or bool(self.network)
            text = self.write_yaml(plain, sort_keys=False, allow_unicode=self._is_unicode, explicit_start=starts)
            print(text, end="", file=self.console.file, flush=True)
            return
        text = json.dumps(document, ensure_ascii=not self._is_unicode, indent=None if one_line else 2)
        print(text, file=self.console.file, flush=True)

    def answer(self, message: Message, text: Callable[[], Text]) -> None:
        """Prints the answer of a service: with `-o json` the message, else its text."""
        if self.json:
            self.show_json(to_json(message))
        else:
            self.show(text())

    def warn(self, sentence: str) -> None:
        """Prints a sentence on standard error, so that standard output stays parsable."""
        print(f"flannelette: {sentence.translate(_HARMLESS)}", file=sys.stderr, flush=True)


def harmless(text: Text) -> Text:
    """A copy without control characters but the ends of lines."""
    text = text.copy()
    text.plain = text.plain.translate(_HARMLESS)
    return text


def screen(output: str) -> Screen:
    """Standard output, for `-o table`, `wide`, `json` or `yaml`. What the locale's encoding lacks is shown as `?`."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False, emoji=False, markup=False)
    write_yaml: Callable[..., str] | None = None
    if output == "yaml":
        import yaml  # takes as long as rich

        write_yaml = yaml.safe_dump
    return Screen(output in ("json", "yaml"), console, write_yaml=write_yaml, wide=output == "wide")


def to_json(message: Message) -> Any:
    """JSON as grpcurl prints it: fields are named as in the .proto files, those at their default left out.

    Keys and passwords in the network configuration are hidden.
    """
    document = MessageToDict(message, preserving_proto_field_name=True)
    if "json" in (network := document.get("network", {})):
        network["json"] = without_secrets(network["json"], SECRETS)
    return document
