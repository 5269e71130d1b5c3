"""A Markdown page as a test sees it: sections of commands, each with the output that the page shows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r" *(`{3,})(.*)")
_MARK = re.compile(r" *<!-- not typed: (.+) -->")
_MARKED = "marked"
_SHOWN = ("json", "text")
SHELLS = ("sh", "bash", "shell", "zsh", "fish", "console", "shell-session")
"""Languages of blocks that a reader types. Tests type those of the first."""
_ELLIPSIS = "..."

_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}"), "MAC"),
    (re.compile(r"\b10\.5\.(?!0\.0)\d+\.(\d+)"), r"10.5.SUBNET.\1"),
    (re.compile(r"\bmetric \d+"), "metric METRIC"),
    (re.compile(r"\b(rtb|eni)-[0-9a-f]+"), r"\1-ID"),
    (re.compile(r"\b[0-9a-f]{8}:\d+"), "CURSOR"),
    (re.compile(r'"microseconds": "\d+"'), '"microseconds": "NUMBER"'),
    (re.compile(r'"version": "[^"]+"'), '"version": "VERSION"'),
    (re.compile(r"\bin \d+ s\b"), "in NUMBER s"),
    (re.compile(r'"firewall(_reason)?": "[^"]+"'), r'"firewall\1": "FIREWALL"'),  # the machine's own iptables decides
    (re.compile(r'"repairs": "\d+"'), '"repairs": "NUMBER"'),
    # A busy kernel may tell of more than the commands did: of what they did first it always tells.
    (re.compile(r'"cause": "[^"]*(route deleted on [\w.]+)[^"]*"'), r'"cause": "\1"'),
    (re.compile(r'"elapsed": "[\d.]+s"'), '"elapsed": "SECONDS"'),
    (re.compile(r",$", re.MULTILINE), ""),  # whether another one follows may depend on what varies
    (re.compile(r'^ *"(?:packets|bytes)": "\d+"\n', re.MULTILINE), ""),  # 0 is left out
)


@dataclass(slots=True)
class Block:
    """Commands that are run together."""

    commands: str
    shown: str = ""
    """What the page says that they print."""

    @property
    def words(self) -> list[str]:
        """The words of the commands."""
        return self.commands.split()


@dataclass(slots=True)
class Section:
    """What is under one heading."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def needs(self, program: str) -> bool:
        """Whether one of its commands runs the program."""
        return any(program in block.words for block in self.blocks)


def sections(page: Path) -> list[Section]:
    """The parts of a page that have commands (fenced as `sh`), in its order.

    A block fenced as `json` or `text` is the output of the nearest commands before it that have none yet. A block
    behind the line `<!-- not typed: WHY -->` is left out.
    """
    found = [Section("")]
    for language, text in _parts(page):
        blocks = found[-1].blocks
        if not language:
            found.append(Section(text))
        elif language == "sh":
            blocks.append(Block(text))
        elif language in _SHOWN:
            for block in [each for each in reversed(blocks) if not each.shown][:1]:
                block.shown = text
    return [section for section in found if section.blocks]


def is_as_shown(output: str, shown: str) -> bool:
    """Whether the output is the one shown, but for what varies.

    A line `...` in what is shown stands for any number of lines, also none.
    """
    lines = _with_the_same_everywhere(shown).splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == _ELLIPSIS else re.escape(line) + r"\n" for line in lines)
    return re.fullmatch(pattern, _with_the_same_everywhere(output)) is not None


def _with_the_same_everywhere(text: str) -> str:
    text = text.rstrip("\n") + "\n"
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text


def mark_of(line: str) -> str:
    """Why no test types the block below this line; empty: the line is no such mark."""
    mark = _MARK.fullmatch(line)
    return mark[1] if mark else ""


def untypable(page: Path) -> list[str]:
    """Its blocks for a shell that no test can type as they stand, and that do not say so."""
    return [text for language, text in _parts(page) if language in SHELLS[1:]]


def _parts(page: Path) -> Iterator[tuple[str, str]]:
    """Headings, without a language, and fenced blocks with theirs."""
    language, fence, inset, block, before = "", "", "", list[str](), ""
    for line in page.read_text().splitlines():
        mark = _FENCE.fullmatch(line)
        if language and mark and mark[1] == fence and not mark[2]:
            yield language, "\n".join(block)
            language, block = "", []
        elif language:
            block.append(line.removeprefix(inset))
        elif mark:
            inset = line[: len(line) - len(line.lstrip())]
            fence, language = mark[1], _MARKED if mark_of(before) else mark[2] or "plain"
        elif line.startswith("## "):
            yield "", line.removeprefix("## ")
        before = line
