"""The table of docs/troubleshooting.md: what doctor says, from the faults that tests make. `make pages` writes it."""

from collections.abc import Iterator
from typing import Final

from tests.findings.table import ALL
from tests.findings.words import words
from tests.hosts.two_hosts import EXAMPLES
from tests.pages.reference.tables import filled, table
from tests.paths import ROOT

PAGE: Final = ROOT / "docs/troubleshooting.md"


def page() -> str:
    """The page as it should be."""
    return filled(PAGE, {"doctor": lambda: table(("what doctor says", "cause", "cure"), rows())})


def rows() -> Iterator[tuple[str, ...]]:
    """By what doctor says, each sentence once."""
    causes: dict[str, dict[str, str]] = {}
    for fault in ALL.values():
        own, peer = EXAMPLES[fault.versions[0]]
        said = words(own, peer) | {"directory": "/run", "n2": "n2", "root": ""}
        problem, cause, cure = (text.format_map(said) for text in (fault.problem, fault.cause, fault.cure))
        causes.setdefault(problem.replace("*", "…"), {}).setdefault(
            _whole(cause), f"`{cure}`" if cure else "what the cause says"
        )
    for problem in sorted(causes):
        for number, (cause, cure) in enumerate(causes[problem].items()):
            yield "" if number else problem, cause, cure.replace("*", "…")


def _whole(cause: str) -> str:
    """The cause of which only the beginning may be known, with its code closed."""
    cause = cause.replace("*", "…")
    return f"{cause}…`" if cause.count("`") % 2 else cause


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
