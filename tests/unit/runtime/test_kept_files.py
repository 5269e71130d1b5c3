"""The files that services keep for their next start, after the disk has changed them, or takes nothing any more."""

import errno
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from flannelette.services.runtime import state
from flannelette.services.runtime.cache import MachineToken, StateFile, records_of
from flannelette.services.runtime.state import (
    Record,
    RecordFile,
    RecordLog,
    pack,
    sealed,
    unpack,
    unwritten,
)
from tests.examples.kept_files import KINDS, LEASES, Kind, read_events, start_with_a_table
from tests.upgrade.golden import RELEASES

SOAK: Final = bool(os.environ.get("FLANNELETTE_SOAK"))
FLIPS: Final = 20_000 if SOAK else 300


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_flipped_bit_costs_what_is_in_its_record_and_is_told(
    tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    whole, expected = path.read_bytes(), kind.read(path)
    assert len(expected) > 2
    kept = []
    for damaged in flipped(whole):
        path.write_bytes(damaged)
        found = kind.read(path)
        assert found <= expected, "nothing is another thing than what was written"
        kept.append(len(found))
        assert str(path) in capsys.readouterr().out
    assert sum(each < len(expected) - 2 for each in kept) < FLIPS / 2, "rarely more than one"
    path.write_bytes(whole)
    kind.write(path)
    assert kind.read(path) >= expected


def flipped(whole: bytes) -> Iterable[bytes]:
    chance = random.Random(int(os.environ.get("FLANNELETTE_SEED", 16)))  # noqa: S311 - which bit, no secret
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        yield bytes(damaged)


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.name)
def test_a_damaged_lease_is_refused_by_its_name_and_the_others_are_kept(
    tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    path, gone = tmp_path / kind.name, LEASES[2]
    kind.write(path)
    expected = kind.read(path)
    whole = path.read_bytes()
    at = whole.index(b"lease/" + gone.name.encode()) + 40
    damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    path.write_bytes(damaged)
    assert kind.read(path) == expected - {gone}
    assert f"lease/{gone.name} (line " in capsys.readouterr().out
    kind.read(path)
    assert path.read_bytes() == damaged, "until something better is there"


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.name)
def test_a_file_of_an_older_release_is_read_once_and_replaced(tmp_path: Path, kind: Kind) -> None:
    new, old = tmp_path / "new" / kind.name, tmp_path / "old" / kind.name
    new.parent.mkdir()
    old.parent.mkdir()
    kind.write(new)
    old.write_bytes(kind.older)
    assert kind.read(old) == kind.read(new)
    kind.write(old)
    assert old.read_bytes() == new.read_bytes()
    assert [each.name for each in old.parent.iterdir() if each.name[0] != "."] == [kind.name]


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.name)
def test_a_damaged_file_of_an_older_release_is_refused_or_read_as_it_is(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / kind.name
    for damaged in flipped(kind.older):
        path.write_bytes(damaged)
        kind.read(path)


@pytest.mark.parametrize("path", sorted(RELEASES.glob("*/*/*/*.state")), ids=lambda path: "/".join(path.parts[-4:]))
def test_what_a_release_has_left_on_a_host_is_read_once(tmp_path: Path, path: Path) -> None:
    node, service = path.parent.name, path.stem
    shutil.copy(path, tmp_path)
    with StateFile(str(tmp_path), service) as file:
        found = file.state_of(node)
        assert found is not None
        old = found[0]
        assert file.write(records_of(node, old.own, old.previous_subnets, old.table_records))
        again = file.state_of(node)
    assert again is not None
    assert again[0] == old
    assert (old.own is None) == (b'"own_lease": ""' in path.read_bytes())
    leases = old.table().leases
    assert all(lease.node != node or lease == old.own for lease in leases.values())
    assert len(leases) == path.read_bytes().count(b"10.99.0.") + (old.own is not None)
    assert unpack(f"{service}.state", (tmp_path / path.name).read_bytes()).damaged == []


def test_what_cannot_be_read_is_kept_beside_what_is_written_next(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "lease.table", "kind")
    file.path.write_bytes(b"damaged")
    assert file.read() == []
    assert file.path.read_bytes() == b"damaged", "until something better is there"
    assert file.write([Record("new", b"1")])
    assert file.read() == [Record("new", b"1")]
    assert (tmp_path / "lease.table.refused").read_bytes() == b"damaged"


def test_a_full_disk_leaves_a_damaged_file_and_what_can_be_read_of_it_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RecordFile(tmp_path / "file", "kind")
    file.write([Record("one", b"1"), Record("two", b"2")])
    damaged = file.path.read_bytes().replace(b"two 2", b"two 3")
    file.path.write_bytes(damaged)
    assert file.read() == [Record("one", b"1")]

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        assert not file.write([Record("one", b"1")])
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": damaged}
    assert RecordFile(file.path, "kind").read() == [Record("one", b"1")], "what the next start would find"
    assert file.write([Record("one", b"1")])
    assert (tmp_path / "file.refused").read_bytes() == damaged
    assert file.is_whole


def test_a_kill_between_any_two_steps_of_a_write_leaves_a_file_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but links and renames change names: after each, the file is there, old or new."""
    file = RecordFile(tmp_path / "file", "kind")
    file.path.write_bytes(b"damaged")
    (tmp_path / "file.refused").write_bytes(b"damaged before")
    assert file.read() == []
    seen = list[bytes]()

    def step(original: Callable[..., None], *arguments: object, **options: object) -> None:
        original(*arguments, **options)
        seen.append(file.path.read_bytes())

    for name in ("link", "replace", "unlink", "rename"):
        monkeypatch.setattr(os, name, partial(step, getattr(os, name)))
    assert file.write([Record("one", b"1")])
    assert len(seen) >= 2
    assert set(seen) == {b"damaged", file.path.read_bytes()}


def test_a_directory_in_the_place_of_a_file_is_moved_aside(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "file", "kind")
    (tmp_path / "file/inside").mkdir(parents=True)
    assert file.read() == []
    assert file.write([Record("one", b"1")])
    assert RecordFile(file.path, "kind").read() == [Record("one", b"1")]
    assert (tmp_path / "file.refused/inside").is_dir()


def test_what_a_power_cut_must_not_cost_is_synced_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[tuple[str, bool]]()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        original(descriptor)
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    assert RecordFile(path, "kind", is_synced=False).write([])
    assert synced == []
    path.unlink()
    assert RecordFile(path, "kind").write([])
    assert synced == [(".file.new", False), (tmp_path.name, True)], "the file before its name, and then the name"


@pytest.mark.parametrize("line", [b"", b"x", b"{}"], ids=["empty", "text", "event"])
def test_a_file_of_damaged_lines_takes_no_memory_for_each(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "dataplane.events"
    path.write_bytes((line + b"\n") * (1 << 20))
    readers: tuple[Callable[[], object], ...] = (RecordFile(path, "kind").read, partial(read_events, path))
    for read in readers:
        tracemalloc.start()
        try:
            assert read() == []
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = RecordFile(tmp_path / "file", "kind")
    file.path.touch()
    os.truncate(file.path, 1 << 40)
    tracemalloc.start()
    try:
        assert file.read() == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert "File too large" in capsys.readouterr().out
    assert file.write([Record("one", b"1")])
    assert RecordFile(file.path, "kind").read() == [Record("one", b"1")]


@pytest.mark.parametrize(
    "head", ["kind", "kind 2", "kind 2 x y", "kind 2 -1 00000000", f"kind 2 {'9' * 5000} 00000000", "kind 2 1 2 3"]
)
def test_a_first_line_that_nobody_writes_is_refused_or_costs_itself(tmp_path: Path, head: str) -> None:
    file = RecordFile(tmp_path / "file", "kind")
    (line,) = pack("kind", [("one", b"1")])
    file.path.write_bytes(b"%08x file %b\n%b" % (crc32(b"file " + head.encode()), head.encode(), line))
    assert file.read() in ([], [Record("one", b"1")])
    assert not file.is_whole


def test_a_whole_that_matches_its_checksum_and_has_lines_that_are_no_records_is_read_line_by_line(
    tmp_path: Path,
) -> None:
    file = RecordFile(tmp_path / "file", "kind")
    file.path.write_bytes(b"".join(sealed("kind", [b"no_record\n", *pack("kind", [("one", b"1")])])))
    assert file.read() == [Record("one", b"1")]
    assert not file.is_whole


def test_a_file_that_is_cut_between_two_records_says_how_many_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = RecordFile(tmp_path / "lease.table", "kind")
    file.write([Record(f"r{number}", b"1") for number in range(5)])
    lines = file.path.read_bytes().splitlines(keepends=True)
    file.path.write_bytes(b"".join(lines[:3]))
    assert [each.name for each in file.read()] == ["r0", "r1"]
    assert "3 at the end, which are missing" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a b", "a\nb", "ä\u2028", "", "x" * 10_000, "\ud800"])
def test_no_name_makes_another_record(tmp_path: Path, name: str) -> None:
    file = RecordFile(tmp_path / "file", "kind")
    assert file.write([Record(name, b"1"), Record("other", b"2")])
    first, second = file.read()
    assert (first.value, second) == (b"1", Record("other", b"2"))
    assert first.name.isascii()
    assert first.name.isprintable()


def test_what_a_killed_process_has_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "lease.table"
    for left in (".lease.table.new", ".lease.table.x8s_3f9", ".lease-blue.table.x8s_3f9"):
        (tmp_path / left).touch()
    start_with_a_table(path)
    assert [each.name for each in tmp_path.iterdir()] == [".lease-blue.table.x8s_3f9"], "which is another network's"


WRITER: Final = """
import sys
from pathlib import Path
from flannelette.services.runtime.state import Record, RecordFile
file, number = RecordFile(Path(sys.argv[1]), "kind"), 0
while True:
    number += 1
    assert file.write(Record.of_json(f"r{each}", [number, "x" * 100]) for each in range(2000))
    print(number, flush=True)
"""


def test_a_kill_in_the_middle_of_a_write_leaves_what_was_there_before_or_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = RecordFile(tmp_path / "file", "kind")
    chance = random.Random(16)  # noqa: S311 - when, no secret
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(file.path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            done = [int(writer.stdout.readline()) for _ in range(chance.randrange(2, 5))]
            writer.kill()
            done += map(int, writer.stdout.read().split())
        records = [record.json() for record in file.read()]
        assert len(records) == 2000
        assert len({each[0] for each in records}) == 1, "all of one write"
        assert records[0][0] in (done[-1], done[-1] + 1)
        assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert not capsys.readouterr().out


@pytest.mark.parametrize("place", ["file", ".file.new", ".file.lock"])
def test_a_link_in_the_place_of_a_file_is_never_followed(tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"of another program")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / place).symlink_to(outside)
    file = RecordFile(tmp_path / "state" / "file", "kind")
    assert file.read() == []
    assert file.write([Record("new", b"1")])
    assert file.read() == [Record("new", b"1")]
    log = RecordLog(tmp_path / "state" / "file", "kind", b"{")
    if place == ".file.lock":
        with pytest.raises(OSError, match="symbolic links"):
            log.read(10)
    assert outside.read_bytes() == b"of another program"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_is_a_finding_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file, machine = RecordFile(tmp_path / "cloud.routes", "kind"), MachineToken("")
    assert list(unwritten([file, machine])) == []
    with monkeypatch.context() as full:

        def fail(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        full.setattr(state, "replace_bytes", fail)
        assert not file.write([])
        (finding,) = unwritten([file, machine])
        assert (finding.check, finding.is_soon, finding.is_broken) == ("state-file", True, False)
        assert finding.problem == f"Cannot write {file.path}: {os.strerror(number)}."
    assert file.write([])
    assert list(unwritten([file, machine])) == []
