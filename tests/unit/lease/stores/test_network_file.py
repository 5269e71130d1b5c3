"""The network configuration in a file."""

import os
from pathlib import Path

import pytest

from services.lease.stores.embedded.inputs import NetworkFile
from tests.examples.leases import NETWORK, NETWORK_JSON, SMALL, SMALL_JSON


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.json"


def test_a_missing_file_is_an_error_until_it_is_there(path: Path) -> None:
    file = NetworkFile(path)
    assert file.refresh()
    assert "write flannel's JSON to" in file.error
    assert str(path) in file.error
    assert not file.refresh()
    path.write_text(SMALL_JSON)
    assert file.refresh()
    assert (file.network, file.error) == (SMALL, "")


def test_a_change_is_picked_up_and_a_broken_one_keeps_the_last_good(path: Path) -> None:
    path.write_text(SMALL_JSON)
    file = NetworkFile(path)
    file.refresh()
    path.write_text('{"Network":')
    assert file.refresh()
    assert file.network == SMALL
    assert "not valid JSON" in file.error
    assert str(path) in file.error
    path.write_text(NETWORK_JSON)
    assert file.refresh()
    assert (file.network, file.error) == (NETWORK, "")
    path.unlink()
    assert file.refresh()
    assert file.network == NETWORK
    assert file.error


def test_a_file_that_looks_the_same_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(SMALL_JSON)
    file = NetworkFile(path)
    file.refresh()
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("it was read again"))
    assert not file.refresh()


def test_a_replaced_file_of_the_same_size_and_time_is_read(path: Path) -> None:
    path.write_text(SMALL_JSON)
    file = NetworkFile(path)
    file.refresh()
    stat = path.stat()
    other = path.with_name("other")
    other.write_text(SMALL_JSON.replace("10.5", "10.6"))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(path)
    assert file.refresh()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"[]", b"", b'{"Network":"10.5.0.0/16","Backend":{"Type":"nonsense"}}']
)
def test_what_is_no_configuration_is_an_error_that_names_the_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    file = NetworkFile(path)
    assert file.refresh()
    assert file.network is None
    assert str(path) in file.error
    assert not file.refresh()


def test_a_directory_is_an_error(tmp_path: Path) -> None:
    file = NetworkFile(tmp_path)
    assert file.refresh()
    assert "cannot read" in file.error
