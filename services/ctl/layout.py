"""Text laid out for a width: folded lines and tables that never cut a word."""

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TypeAlias

from rich.cells import cell_len
from rich.text import Text

from flannelette.services.core.formats.text import visible

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
