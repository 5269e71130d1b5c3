"""Text for people: durations, times, counts and leases in words, the order in which people look for them, and what is
laid out for a width, folded lines and tables that never cut a word.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from ipaddress import ip_network
from itertools import zip_longest
from typing import Final, TypeAlias

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from rich.cells import cell_len
from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.formats.text import visible
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


def count(number: int, noun: str) -> str:
    """`1 lease`, `2 leases`, `10,000 leases`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


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
