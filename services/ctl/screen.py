"""Output of the command line: to a terminal, a pipe or a file, as text, JSON or YAML.

First durations, times, counts and leases in words, and the order in which people look for them; then text that is
laid out for a width, folded lines and tables that never cut a word; last what all of it is shown on.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from io import TextIOWrapper
from ipaddress import ip_network
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.backend_types import SECRETS
from flannelette.services.core.formats.gojson import without_secrets
from flannelette.services.core.formats.text import escape, is_visible, visible
from flannelette.services.core.frozen import frozen
from flannelette.services.core.limits import nearest_time

_MOST_NODES: Final = 10
_BYTE_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def duration(seconds: float) -> str:
    """The two largest units, rounded down: `22 h 58 m`, `3 d`, `45 s`. Nothing is below `0 s`."""
    rest = max(int(seconds), 0)
    largest = next((i for i, (size, _) in enumerate(_UNITS) if rest >= size), len(_UNITS) - 1)
    parts: list[str] = []
    for size, unit in _UNITS[largest : largest + 2]:
        count, rest = divmod(rest, size)
        if count or not parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def short_time(time: Duration) -> str:
    """A delay: `12 ms`, `3.4 s`, `2 m 5 s`."""
    seconds = time.seconds + time.nanos / 1e9
    if seconds >= 60:
        return duration(seconds)
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(round(seconds * 1000), 1)} ms"


def took(microseconds: int) -> str:
    """A run time: `480 µs`, `1.2 ms`, `53 ms`, `3.4 s`, `2 m 5 s`."""
    if microseconds < 1000:
        return f"{microseconds} µs"
    if microseconds < 1_000_000:
        milliseconds = microseconds / 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    return f"{microseconds / 1e6:.1f} s" if microseconds < 60e6 else duration(microseconds / 1e6)


def until(time: Timestamp, now: datetime) -> str:
    """How long from now to then: `22 h 58 m`."""
    return duration((moment(time) - now).total_seconds())


def ago(time: Timestamp, now: datetime) -> str:
    """How long from then to now: `12 s ago`."""
    return f"{duration((now - moment(time)).total_seconds())} ago"


def moment(time: Timestamp) -> datetime:
    """The time, in UTC."""
    return datetime.fromtimestamp(nearest_time(time.seconds + time.nanos / 1e9), UTC)


def byte_count(number: float) -> str:
    """`0 B`, `1.3 kB`, `33 kB`: units of 1,000."""
    unit = 0
    while number >= 1000 and unit < len(_BYTE_UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.0f} {_BYTE_UNITS[unit]}" if unit == 0 or number >= 10 else f"{number:.1f} {_BYTE_UNITS[unit]}"


def mtu(size: int) -> str:
    """`mtu 1450`; empty if not known."""
    return f"mtu {size}" if size else ""


def phrase(*parts: str) -> str:
    """The parts that are not empty, with commas."""
    return ", ".join(part for part in parts if part)


def in_order(name: str) -> list[str | int]:
    """A sort key: h2 before h10."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]


def shown_nodes(nodes: Sequence[str]) -> str:
    """The names, or the first of many."""
    more = len(nodes) - _MOST_NODES
    return ", ".join(nodes[:_MOST_NODES]) + (f" and {more} more" if more > 0 else "")


def by_address(cidrs: Iterable[str]) -> list[tuple[int, int, str]]:
    """A sort key: 10.5.9.0/24 before 10.5.10.0/24, IPv4 before IPv6, and what is no subnet last."""
    return [_place(cidr) for cidr in cidrs]


def _place(cidr: str) -> tuple[int, int, str]:
    try:
        network = ip_network(cidr)
    except ValueError:
        return (9, 0, cidr)
    return (network.version, int(network.network_address), cidr)


def network_words(network: pb.Network) -> str:
    """`10.5.0.0/16 (a /24 per node), vxlan`; empty if there is none."""
    families = [f.cidr + (f" (a /{f.subnet_length} per node)" if f.subnet_length else "") for f in network.families]
    return phrase(*families, network.backend_type)


def store_words(store: pb.StoreStatus) -> str:
    """`etcd, connected`, or why it is not."""
    if store.connected:
        return f"{store.kind}, connected"
    return f"the store ({store.kind}) is away" + (f": {store.error}" if store.error else "")


def data_words(subnet: pb.Subnet) -> str:
    """What peers need to know of this node's backend: `vni 1 c6:d2:32:6f:8f:44`."""
    match subnet.WhichOneof("backend_data"):
        case "vxlan":
            return f"vni {subnet.vxlan.vni} {subnet.vxlan.mac}"
        case "wireguard":
            return subnet.wireguard.public_key + (f" port {subnet.wireguard.port}" if subnet.wireguard.port else "")
        case "opaque_json":
            return subnet.opaque_json
    return ""


def subnets_of(lease: pb.Lease) -> tuple[str, ...]:
    """The subnets of a lease, one of each address family."""
    return tuple(subnet.cidr for subnet in lease.subnets)


Width: TypeAlias = int | None
"""Columns of the terminal; None: no terminal, one line per row, however long."""
Cell: TypeAlias = tuple[str | Text, ...]
"""The values of one row in one column, usually one; two where a lease has two families."""

_GAP = "  "
_INDENT = "    "


def lines(texts: Iterable[str | Text]) -> Text:
    """The texts, one below the other."""
    return Text("\n").join(_text(text) for text in texts)


def fold(text: str | Text, width: Width, indent: int = 0) -> Text:
    """Breaks at blanks only, and only what is wider than `width`; the lines that follow are indented."""
    text = _text(text)
    if width is None or text.cell_len <= width:
        return text
    breaks, start, room = [], 0, width
    for number, word in enumerate(re.finditer(r"[^ ]+", text.plain)):
        if number and cell_len(text.plain[start : word.end()]) > room:
            breaks.append(start := word.start())
            room = width - indent
    first, *rest = text.divide(breaks)
    folded = [first, *(Text(" " * indent).append_text(line) for line in rest)]
    for line in folded:
        line.rstrip()
    return lines(folded)


def labelled(label: str, value: str | Text, width: Width, *, column: int = 11) -> Text:
    """`  label      value`, folded under the value."""
    head = Text(f"  {label:<{column - 1}} ", style="dim")
    return fold(Text().append_text(head).append_text(_text(value)), width, head.cell_len)


def table(titles: Sequence[str], rows: Sequence[Sequence[Cell]], width: Width) -> Text:
    """A table without lines. Nothing is ever cut, and no line ends in blanks.

    A column without any value is left out. What does not fit `width` goes, with its title, to lines of its own
    below the row. Without a width each row is exactly one line, its values joined by commas, `-` for none.
    """
    used = [i for i in range(len(titles)) if width is None or any(_filled(row[i]) for row in rows)]
    titles = [titles[i] for i in used]
    cells = [[_values(row[i], width, last=i == used[-1]) for i in used] for row in rows]
    sizes = [
        max(cell_len(title), max((value.cell_len for row in cells for value in row[i]), default=0))
        for i, title in enumerate(titles)
    ]
    kept = _columns_that_fit(sizes, width)
    out = [_line([Text(title, style="bold") for title in titles[:kept]], sizes)]
    for row in cells:
        out += [_line(values, sizes) for values in zip_longest(*row[:kept], fillvalue=Text())]
        below = [
            Text.assemble((f"{title.lower()}: ", "dim"), Text(", ").join(values))
            for title, values in zip(titles[kept:], row[kept:], strict=True)
            if values[0].plain not in ("", "-")
        ]
        out += [fold(Text(_INDENT).append_text(text), width, len(_INDENT) + 2) for text in _pack(below, width)]
    return lines(out)


def _columns_that_fit(sizes: Sequence[int], width: Width) -> int:
    if width is None:
        return len(sizes)
    taken = 0
    for index, size in enumerate(sizes):
        taken += size + (len(_GAP) if index else 0)
        if taken > width:
            return max(index, 1)
    return len(sizes)


def _pack(texts: Sequence[Text], width: Width) -> list[Text]:
    """Packs as many of the texts on each line as fit."""
    packed: list[Text] = []
    for text in texts:
        if packed and width and len(_INDENT) + packed[-1].cell_len + len(_GAP) + text.cell_len <= width:
            packed[-1] = Text(_GAP).join([packed[-1], text])
        else:
            packed.append(text)
    return packed


def _line(cells: Sequence[Text], sizes: Sequence[int]) -> Text:
    line = Text()
    for index, cell in enumerate(cells):
        line.append_text(cell)
        if any(rest.plain for rest in cells[index + 1 :]):
            line.append(" " * (sizes[index] - cell.cell_len) + _GAP)
    return line


def _values(cell: Cell, width: Width, *, last: bool) -> list[Text]:
    nothing = Text() if last and width else Text("-")
    values = [_text(value) for value in cell if _filled((value,))] or [nothing]
    return [Text(",").join(values)] if width is None and len(values) > 1 else values


def _filled(cell: Cell) -> bool:
    return any(_text(value).plain for value in cell)


def _text(value: str | Text) -> Text:
    return value.copy() if isinstance(value, Text) else Text(visible(value, keeps="\n"))


_LONG: Final = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
"""Types of numbers that protobuf's JSON has as text."""


@frozen
class Screen:
    """Standard output of a command. Colours only on a terminal, and not with NO_COLOR; text is never cut."""

    output: str
    """The format: what `-o` says."""
    console: Console
    write_yaml: Callable[..., str] | None = None
    """Writes documents as YAML; None: they are shown as JSON."""
    network: str = ""
    """Name of the network that is shown, of several; empty: there is one."""

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
