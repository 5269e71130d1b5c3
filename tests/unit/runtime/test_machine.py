"""The token of a machine: made once, kept, and another one on a copy of the machine."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from zlib import crc32

import pytest

from flannelette.services.runtime import cache as module
from flannelette.services.runtime import state
from flannelette.services.runtime.cache import MachineToken, StateFile, hardware_addresses
from flannelette.services.runtime.events import EventFile

SOAK = os.environ.get("FLANNELETTE_SOAK") == "1"


class Kind(Enum):
    """The kinds of some service's events."""

    RESYNC = 1


def with_cards(directory: Path, **cards: str) -> Path:
    """`/sys/class/net` of a machine that has these network cards."""
    for name, address in {**cards, "lo": "00:00:00:00:00:00", "cni0": "0a:00:00:00:00:01"}.items():
        (directory / name).mkdir(parents=True)
        (directory / name / "address").write_text(f"{address}\n")
        (directory / name / "addr_assign_type").write_text("0\n" if name != "cni0" else "3\n")
        if name in cards:
            (directory / name / "device").mkdir()
    return directory


def test_a_token_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    first = MachineToken(str(tmp_path / "state"), tmp_path / "none")
    assert len(first.token) == 32
    assert stat.S_IMODE((tmp_path / "state/machine").stat().st_mode) == 0o600
    assert MachineToken(str(tmp_path / "state"), tmp_path / "none").token == first.token
    assert MachineToken(str(tmp_path / "other"), tmp_path / "none").token == first.token, "units after containers"


def test_a_copy_of_the_directory_on_a_machine_with_other_cards_gets_a_token_of_its_own(tmp_path: Path) -> None:
    original = with_cards(tmp_path / "a", eth0="52:54:00:00:00:01", eth1="52:54:00:00:00:02")
    clone = with_cards(tmp_path / "b", eth0="52:54:00:00:00:03", eth1="52:54:00:00:00:04")
    state = str(tmp_path / "state")
    token = MachineToken(state, original).token
    assert MachineToken(state, original).token == token
    cloned = MachineToken(state, clone).token
    assert cloned != token
    assert MachineToken(state, clone).token == cloned


def test_a_machine_keeps_its_token_when_one_of_its_cards_is_replaced_or_none_can_be_seen(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    token = MachineToken(state, with_cards(tmp_path / "a", eth0="52:54:00:00:00:01", eth1="52:54:00:00:00:02")).token
    for number, cards in enumerate((
        {"eth0": "52:54:00:00:00:01", "eth1": "52:54:00:00:00:03"},
        {},
        {"eth0": "52:54:00:00:00:04", "eth1": "52:54:00:00:00:03"},
    )):  # fmt: skip
        assert MachineToken(state, with_cards(tmp_path / str(number), **cards)).token == token
    assert hardware_addresses(tmp_path / "none") == frozenset()


def test_a_directory_that_is_lost_with_its_container_costs_the_token_only_at_a_reboot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = with_cards(tmp_path / "cards", eth0="52:54:00:00:00:01")
    tokens = []
    for boot in ("one", "one", "two"):
        (tmp_path / boot).write_text(f"{boot}\n")
        monkeypatch.setattr(module, "_BOOT", tmp_path / boot)
        tokens.append(MachineToken(str(tmp_path / "state"), cards).token)
        assert MachineToken(str(tmp_path / "state"), cards).token == tokens[-1]
        shutil.rmtree(tmp_path / "state")
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_token_that_is_kept_is_the_same_after_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = MachineToken(str(tmp_path), tmp_path / "none").token
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(module, "_BOOT", tmp_path / "boot")
    assert MachineToken(str(tmp_path), tmp_path / "none").token == first


def test_a_running_machine_that_was_cloned_with_its_memory_gets_a_token_of_its_own(tmp_path: Path) -> None:
    original = with_cards(tmp_path / "a", eth0="52:54:00:00:00:01")
    clone = with_cards(tmp_path / "b", eth0="52:54:00:00:00:02")
    token = MachineToken(str(tmp_path / "state"), original).token
    shutil.rmtree(tmp_path / "state")
    assert MachineToken(str(tmp_path / "state"), clone).token != token


def in_namespace_of_its_own(state: Path) -> str:
    """The token of a container that has no cards, and a network namespace of its own."""
    module = "flannelette.services.runtime.cache"
    code = f"from {module} import MachineToken; print(MachineToken({str(state)!r}).token)"
    command = ["unshare", "--net", "--mount", "sh", "-euc", 'mount -t sysfs sysfs /sys; exec "$@"', "sh"]
    return subprocess.check_output([*command, sys.executable, "-c", code], text=True).strip()


def test_containers_on_one_kernel_are_machines_of_their_own_also_one_after_the_other(tmp_path: Path) -> None:
    state = tmp_path / "state"
    tokens = []
    for _ in range(3):
        shutil.rmtree(state, ignore_errors=True)
        tokens.append(in_namespace_of_its_own(state))
    assert len(set(tokens)) == 3
    assert in_namespace_of_its_own(state) == tokens[-1], "restarted with its volume"


@pytest.mark.parametrize("unseen", ["boot", "namespace"])
def test_where_the_boot_or_the_namespace_is_not_seen_a_token_is_drawn(
    unseen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unseen == "boot":
        monkeypatch.setattr(module, "_BOOT", tmp_path / "none")
    else:
        monkeypatch.setattr(module, "_SO_NETNS_COOKIE", 9999)  # a kernel before 5.14
    first = MachineToken(str(tmp_path / "state"), tmp_path / "none").token
    shutil.rmtree(tmp_path / "state")
    second = MachineToken(str(tmp_path / "state"), tmp_path / "none").token
    assert (len(first), len(second)) == (32, 32)
    assert first != second


def test_dataplanes_that_start_at_once_with_one_directory_have_one_token(tmp_path: Path) -> None:
    for number in range(50):
        state = str(tmp_path / f"state{number}")
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _, at=state: MachineToken(at, tmp_path / "none"), range(8)))
        assert {(each.token, each.problem) for each in found} == {(found[0].token, "")}
        assert len(found[0].token) == 32


def test_new_cards_beside_a_directory_that_is_read_only_now_cost_no_token(tmp_path: Path) -> None:
    state = tmp_path / "state"
    token = MachineToken(str(state), with_cards(tmp_path / "a", eth0="52:54:00:00:00:01")).token
    (state / ".machine.new").mkdir()  # so that nobody, and not root either, can write the file
    machine = MachineToken(str(state), with_cards(tmp_path / "b", eth0="52:54:00:00:00:01", eth1="52:54:00:00:00:02"))
    assert (machine.token, machine.problem) == (token, "")
    machine = MachineToken(str(state), with_cards(tmp_path / "c", eth0="52:54:00:00:00:03"))
    assert machine.token == "", "it is a copy of another machine's"
    assert "cannot write" in machine.problem


def test_a_token_that_is_damaged_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = MachineToken(str(tmp_path), tmp_path / "none").token
    (tmp_path / "boot").write_text("another\n")  # else the one that is made would be the same
    monkeypatch.setattr(module, "_BOOT", tmp_path / "boot")
    first, *copies = (tmp_path / "machine").read_bytes().splitlines(keepends=True)
    assert set(copies) == {copies[0]}
    for bit in range(0, 8 * len(copies[0]), 1 if SOAK else 3):  # of each byte two or three
        damaged = bytearray(copies[0])
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "machine").write_bytes(first + bytes(damaged) * len(copies))
        found = MachineToken(str(tmp_path), tmp_path / "none").token
        assert len(found) == 32
        assert found != token, "which is in no copy of the record"


@pytest.mark.parametrize("directory", ["", "/proc/no"])
def test_without_a_place_for_it_there_is_no_token(directory: str) -> None:
    machine = MachineToken(directory)
    assert (machine.token, machine.problem) == ("", "")


def test_a_token_that_cannot_be_read_and_not_be_replaced_is_told(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    (tmp_path / ".machine.new").mkdir()  # so that nobody, and not root either, can write the file
    machine = MachineToken(str(tmp_path), tmp_path / "none")
    assert machine.token == ""
    assert "cannot write" in machine.problem


def test_a_flipped_bit_in_the_file_costs_no_token_and_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reboot, after which the token could not be made again."""
    path = tmp_path / "machine"
    token = MachineToken(str(tmp_path), tmp_path / "none").token
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(module, "_BOOT", tmp_path / "boot")
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        assert MachineToken(str(tmp_path), tmp_path / "none").token == token, place
        assert path.read_bytes() == whole, "before the next bit"


def test_a_damaged_file_that_a_full_disk_keeps_from_being_mended_costs_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "machine"
    token = MachineToken(str(tmp_path), tmp_path / "none").token
    damaged = path.read_bytes()[:-3]
    path.write_bytes(damaged)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    machine = MachineToken(str(tmp_path), tmp_path / "none")
    assert (machine.token, machine.problem) == (token, "")
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_file_that_cannot_be_read_now_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Without a token this node is as one of an older release; with another one its own name would be refused."""
    token = MachineToken(str(tmp_path), tmp_path / "none").token
    with monkeypatch.context() as broken:

        def fail(*_: object) -> bytes:
            raise OSError(number, os.strerror(number))

        broken.setattr(state, "read_bytes", fail)
        machine = MachineToken(str(tmp_path), tmp_path / "none")
        assert machine.token == ""
        assert machine.problem == f"cannot read {tmp_path / 'machine'}: {os.strerror(number)}"
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(module, "_BOOT", tmp_path / "boot")
    assert MachineToken(str(tmp_path), tmp_path / "none").token == token


def test_a_file_of_a_newer_release_is_not_replaced(tmp_path: Path) -> None:
    """Who goes back to this release goes forward again, and is the machine that it was."""
    path, rest = tmp_path / "machine", b"what it will have\n"
    body = b"file machine 3 1 00000000"
    path.write_bytes(b"%08x %b\n%b" % (crc32(body), body, rest))
    before = path.read_bytes()
    machine = MachineToken(str(tmp_path), tmp_path / "none")
    assert machine.token == ""
    assert "another version of this service has written the file" in machine.problem
    assert path.read_bytes() == before


def test_a_directory_that_no_path_can_name_ends_no_service(tmp_path: Path) -> None:
    """As one that this user may not search: Path.exists and Path.is_dir raise an error."""
    directory = str(tmp_path / ("x" * 300))
    assert MachineToken(directory).token == ""
    with StateFile(directory, "dataplane") as file:
        assert not file.is_usable
    assert EventFile(Path(directory, "dataplane.events"), Kind).read() == []
