"""`make site`: the pages of the tree as the sources of a site, which MkDocs builds (mkdocs.yml).

A page in the tree links to files of the tree. In the site, a link to a file that is a page there leads to the page,
and any other one becomes the name of the file.
"""

import posixpath
import re
import shutil
from typing import Final

from tests.pages.document import mark_of
from tests.pages.reference import api
from tests.paths import ROOT

FOLDER: Final = ROOT / ".build/site-source"
BESIDE_DOCS: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "threat-model.md",
    "deploy/helm/flannelette/README.md": "chart.md",
    "tests/README.md": "tests.md",
}
"""The page of the site by its file in the tree; a file of docs/ has the same name there."""
_FOLDERS: Final = {"docs/adr": "decisions.md", "proto/flannelette": "api/lease.md"}
"""The page of the site that stands for a folder of the tree."""
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_COMMENT: Final = re.compile(r"^<!--.*?-->$", re.M)
_CODE: Final = re.compile(r"(^```.*?^```$)", re.M | re.S)


def pages() -> dict[str, str]:
    """The text of each page of the site, by its name there."""
    docs = (path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.md")))
    sources = BESIDE_DOCS | {str(path): str(path.relative_to("docs")) for path in docs}
    written = {page: in_site((ROOT / source).read_text(), source, page) for source, page in sources.items()}
    return written | {"decisions.md": _decisions(written)} | api.pages()


def in_site(markdown: str, source: str, page: str) -> str:
    """The text of a file of the tree with the links of its page in the site."""

    def led(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, hash_sign, anchor = target.partition("#")
        if "://" in target or not path:
            return link[0]
        in_tree = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = {**BESIDE_DOCS, **_FOLDERS}.get(in_tree) or (in_tree[5:] if in_tree.startswith("docs/") else "")
        if there:
            way = posixpath.relpath(there, posixpath.dirname(page) or ".")
            return f"{mark}[{text}]({way}{hash_sign}{anchor})"
        return text if in_tree.endswith(text.strip("`")) else f"{text} (`{in_tree}`)"

    shown = "".join(_with_mark_shown(line) for line in markdown.splitlines(keepends=True))
    parts = _CODE.split(_COMMENT.sub("", shown))  # for MkDocs a table right behind a comment is text
    return "".join(part if part.startswith("```") else _LINK.sub(led, part) for part in parts)


def _with_mark_shown(line: str) -> str:
    """What a comment says of the block below it, for a reader too."""
    why = mark_of(line.rstrip("\n"))
    return f"{line.partition('<')[0]}*No test types this: {why}.*\n\n" if why else line


def _decisions(written: dict[str, str]) -> str:
    titles = {name: text.partition("\n")[0].removeprefix("# ") for name, text in written.items()}
    rows = [f"* [{titles[name]}]({name})\n" for name in sorted(titles) if name.startswith("adr/")]
    return "# Decisions\n\nWhy something is as it is, and what else was considered.\n\n" + "".join(rows)


def main() -> None:
    """Writes the sources, pictures too."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.copytree(ROOT / "docs", FOLDER, ignore=shutil.ignore_patterns("*.md"))
    (FOLDER / "api").mkdir()
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
