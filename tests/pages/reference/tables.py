"""Tables of a page that are made from the code: each stands behind its mark, `<!-- table: NAME -->`."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

Rows: TypeAlias = Iterable[tuple[str, ...]]
_TABLE: Final = re.compile(r"(?<=^<!-- table: )([\w -]+)( -->\n)(?:\|.*\n)*", re.M)


def table(head: tuple[str, ...], rows: Rows) -> str:
    """In Markdown."""
    lines = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)
    return f"| {' | '.join(head)} |\n{'|---' * len(head)}|\n{''.join(lines)}"


def filled(page: Path, tables: Mapping[str, Callable[[], str]]) -> str:
    """The text of the page with its tables as the code has them. KeyError: a mark that no table has."""
    text, missing = page.read_text(), set(tables)

    def made(mark: re.Match[str]) -> str:
        missing.discard(mark[1])
        return f"{mark[1]}{mark[2]}{tables[mark[1]]()}"

    text = _TABLE.sub(made, text)
    assert not missing, f"{page.name} has no mark of {', '.join(sorted(missing))}"
    return text
