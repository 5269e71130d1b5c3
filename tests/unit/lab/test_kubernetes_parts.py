"""The parts of a node: when one is built again."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.kubernetes import parts
from lab.kubernetes.parts import Part, all_parts
from lab.show import Screen


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Part:
    """One that is built."""
    monkeypatch.setattr(parts, "PLACE", tmp_path)
    (tmp_path / "source").write_text("1")
    made = Part("part", "nothing", ("touch", tmp_path / "made"), (tmp_path / "made",), (tmp_path / "source",))
    with Screen().step("part", "") as step:
        made.build(step)
    return made


def test_a_part_that_was_built_is_not_built_again(part: Part) -> None:
    assert part.is_there


def test_a_part_of_another_source_is_built_again(part: Part) -> None:
    part.sources[0].write_text("2")
    assert not part.is_there


def test_a_part_of_another_command_is_built_again(part: Part) -> None:
    """As the nodes' image, whose names have the version of etcd."""
    assert not replace(part, command=(*part.command, "name:2")).is_there


def test_a_part_of_another_tree_is_the_same(part: Part) -> None:
    assert replace(part, command=("touch", Path("/another/made"))).is_there


def test_every_part_is_built_again_when_the_script_that_builds_it_changes() -> None:
    scripts = {part.title: [path for path in part.command if str(path).endswith(".sh")][-1] for part in all_parts()}
    assert [part.title for part in all_parts() if scripts[part.title] not in part.sources] == []
