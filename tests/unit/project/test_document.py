"""How a test reads a page: what belongs together, and when an output is the one shown."""

from pathlib import Path

import pytest

from tests.pages.document import Block, Section, is_as_shown, sections, untypable

PAGE = """# A page

## One

```sh
a
```

and

```sh
watch
```

```sh
b
c
```

prints

```json
{}
```

Meanwhile the watch has

```text
seen it
```

## Without commands

```
d
```
"""


def test_an_output_belongs_to_the_nearest_commands_that_have_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert sections(page) == [Section("One", [Block("a"), Block("watch", "seen it"), Block("b\nc", "{}")])]


def test_commands_in_a_list_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## One\n\n1. first\n\n   ```sh\n   a\n     b\n   ```\n")
    assert sections(page) == [Section("One", [Block("a\n  b")])]


def test_marked_blocks_are_left_out_and_others_that_cannot_be_typed_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    mark = "<!-- not typed: it reboots -->\n"
    page.write_text(f"## One\n\n{mark}```sh\na\n```\n\n{mark}```console\n$ b\n```\n\n```bash\nc\n```\n")
    assert (sections(page), untypable(page)) == ([], ["c"])


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("a\nb\n", "a\nb"),
        ("a\nb\nc\n", "a\n...\nc"),
        ("a\nc\n", "a\n  ...\nc"),
        ("a\n", "a\n..."),
        (
            '"cause": "address added on flannel.1; route deleted on flannel.1, 2 times"',
            '"cause": "route deleted on flannel.1"',
        ),
        ('"mac": "0a:ad:ae:b8:b4:6e",\n', '"mac": "26:a4:52:4e:1e:4e"\n'),
        ("via 10.5.7.0 metric 3 at 2026-11-20T14:37:21.360Z", "via 10.5.96.0 metric 1377 at 2026-11-21T14:37:20Z"),
        ('"present": true,\n  "packets": "3"\n', '"present": true'),
    ],
)
def test_what_varies_or_is_left_out_may_differ(output: str, shown: str) -> None:
    assert is_as_shown(output, shown)


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("a\nb\nc\n", "a\nc"),
        ("a\nb\n", "a"),
        ("b\na\n", "a\n...\nb"),
        ('"ready": false\n', '"ready": true\n'),
        ("10.5.7.2", "10.5.7.3"),
        ("10.5.0.0/16", "10.5.7.0/16"),
        ("10.99.0.11", "10.99.0.12"),
    ],
)
def test_anything_else_must_be_the_same(output: str, shown: str) -> None:
    assert not is_as_shown(output, shown)
