"""The file of --state-dir: whole or not at all, for one process, and a disk that is full costs only the memory."""

import subprocess
from pathlib import Path

import pytest

from flannelette.services.runtime.cache import StateFile
from tests.unit.runtime.test_node_state import OWN, written


def test_a_full_disk_leaves_what_was_there_and_nothing_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount here")
    try:
        with StateFile(str(tmp_path), "dataplane") as file:
            assert file.put([written()])
            assert not file.put([b"x" * 65_536])
            assert not file.put([b"x" * 65_536])
            assert [path.name for path in tmp_path.glob("[!.]*")] == ["dataplane.state"]
            found = file.state_of("n1")
            assert found is not None
            assert found[0].own == OWN
            assert capsys.readouterr().out.count("No space left on device") == 1
            assert file.put([written()])
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_what_is_written_is_for_its_owner_alone_in_a_directory_likewise(tmp_path: Path) -> None:
    with StateFile(str(tmp_path / "a/b"), "dataplane") as file:
        assert file.put([written()])
        assert (file.path.stat().st_mode & 0o777, file.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_directory_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    with StateFile(str(tmp_path), "dataplane") as first, StateFile(str(tmp_path), "dataplane") as second:
        assert (first.is_usable, second.is_usable, second.state_of("n1")) == (True, False, None)
    with StateFile(str(tmp_path), "dataplane") as third:
        assert third.is_usable


@pytest.mark.parametrize("what", ["a directory", "a device"])
def test_whatever_is_in_its_place_is_kept_beside(tmp_path: Path, what: str) -> None:
    path = tmp_path / "dataplane.state"
    if what == "a directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    with StateFile(str(tmp_path), "dataplane") as file:
        assert file.state_of("n1") is None
        assert file.put([written()])
        assert file.state_of("n1") is not None
    refused = path.with_name("dataplane.state.refused")
    assert refused.is_dir() if what == "a directory" else refused.is_symlink()
