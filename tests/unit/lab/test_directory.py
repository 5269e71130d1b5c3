import os
from pathlib import Path

import pytest

from lab.directory import DirectoryUnusable, held, where


def test_the_directory_is_named_for_the_user_who_started_the_lab() -> None:
    assert where(1000).name == "flannelette-1000"


def test_it_is_empty_and_private_and_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lab"
    with held(path):
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "h1").mkdir()
    assert not path.exists()


def test_what_a_killed_lab_left_is_cleared_but_links_are_not_followed(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "lab", tmp_path / "elsewhere"
    for directory in (path / "h1", elsewhere):
        directory.mkdir(parents=True)
        (directory / "file").touch()
    (path / "link").symlink_to(elsewhere)
    with held(path):
        assert list(path.iterdir()) == []
    assert (elsewhere / "file").exists()


def test_two_labs_do_not_share_it(tmp_path: Path) -> None:
    path = tmp_path / "lab"
    with (
        held(path),
        pytest.raises(DirectoryUnusable, match=r"a lab is running in .*: stop it with Ctrl-C"),
        held(path),
    ):
        pass
    with held(path):
        pass


def test_it_is_not_taken_from_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lab"
    path.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(DirectoryUnusable, match="belongs to somebody else: set TMPDIR"), held(path):
        pass
    assert path.exists()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lab").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DirectoryUnusable, match="set TMPDIR to another directory"), held(tmp_path / "lab"):
        pass
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (Path("/run/user/1000/flannelette-1000"), "could not be seen from outside of the lab"),
        (Path("/tmp", "d" * 90), "is too long for unix sockets: set TMPDIR to a shorter directory"),  # noqa: S108 - a name only
        (Path("/nowhere/flannelette-0"), r"cannot use .* \(No such file or directory\)"),
    ],
)
def test_a_place_that_cannot_work_is_refused_before_anything_starts(path: Path, complaint: str) -> None:
    with pytest.raises(DirectoryUnusable, match=complaint), held(path):
        pass
