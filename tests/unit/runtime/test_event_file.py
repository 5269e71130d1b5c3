"""The file of events: a restart keeps them, a kill loses the last batch, and a bad file costs only what is bad."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path

import pytest

from flannelette.services.runtime.events import REMEMBERED, Event, EventFile, Journal, RecordedEvent, Subject
from flannelette.services.runtime.state import HALF
from tests.waiting import contains, eventually


class Kind(Enum):
    STARTED = auto()
    DONE = auto()


class Cause(Enum):
    DELETED = "deleted"


class Life:
    """One process: what it knows from before, and what it notes."""

    def __init__(self, path: Path) -> None:
        self.file = EventFile(path, Kind, Cause)
        self.journal = Journal(earlier=self.file.read())
        self.journal.note(Event(Kind.STARTED, "started"))

    def note(self, *words: str) -> None:
        for each in words:
            self.journal.note(Event(Kind.DONE, each))

    async def end(self) -> None:
        await self.file.close(self.journal)

    def kill(self) -> None:
        """As a kill does: the kernel frees the lock, and nothing is written."""
        assert self.file._log
        self.file._log.close()

    def all(self) -> list[RecordedEvent]:
        found = list[RecordedEvent]()
        while True:
            entries, _ = self.journal.after(found[-1].number if found else 0)
            if not entries:
                return found
            found += entries

    def told(self) -> list[str]:
        return [entry.event.what for entry in self.all()]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount here")
    yield tmp_path / "x.events"
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.events"


async def test_an_event_comes_back_with_everything_about_it(path: Path) -> None:
    first = Life(path)
    first.journal.cursor = "e1:7"
    event = Event(Kind.DONE, "päckchen\n\x1b[2J", "why", 0.25, (Subject("10.5.1.0-24", "n1"),), 900, 3, Cause.DELETED)
    first.journal.note(event)
    await first.end()
    second = Life(path)
    assert second.all()[:2] == first.all()
    assert second.all()[1].event == event
    assert second.told() == ["started", event.what, "started"]
    assert mode(path) == 0o600


async def test_a_position_stays_valid_over_restarts_and_what_a_kill_has_lost_hides_nothing_new(path: Path) -> None:
    first = Life(path)
    first.note("a", "b")
    await first.file.write(first.journal)
    first.note("told and never written")
    after_b, lost = f"{first.journal.epoch}:3", f"{first.journal.epoch}:4"
    first.kill()
    second = Life(path)
    second.note("c")
    assert second.told() == ["started", "a", "b", "started", "c"]
    for position in (after_b, lost):
        entries, missed = second.journal.after(second.journal.number_of(position))
        assert ([entry.event.what for entry in entries], missed) == (["started", "c"], 0)
    await second.end()
    third = Life(path)
    assert third.journal.after(third.journal.number_of(lost))[0][0].event.what == "started"
    assert third.journal.number_of("deadbeef:3") == 0


async def test_the_file_is_bounded_and_the_newest_are_in_it(path: Path) -> None:
    life = Life(path)
    for number in range(5 * REMEMBERED):
        life.note(f"{number} {200 * '.'}")
        if number % 1000 == 0:
            await life.file.write(life.journal)
    await life.end()
    assert sum(each.stat().st_size for each in path.parent.iterdir()) <= 2 * HALF
    told = Life(path).told()
    assert told[-2].startswith(f"{5 * REMEMBERED - 1} ")
    assert len(told) > 1000
    numbers = [int(each.split()[0]) for each in told[:-1]]
    assert numbers == list(range(numbers[0], 5 * REMEMBERED))


async def test_more_at_once_than_is_remembered_leaves_no_gap_untold(path: Path) -> None:
    life = Life(path)
    await life.file.write(life.journal)
    life.note(*map(str, range(REMEMBERED + 100)))
    await life.end()
    later = Life(path)
    assert later.told()[-2] == str(REMEMBERED + 99)
    assert later.journal.after(1)[1] == 101, "100 that were never written, and one that is forgotten by now"


GOOD = b'{"position":"e0:5","time":1,"kind":"DONE","what":"good"}\n'
BAD = {
    "a torn line": b'{"position":"e0:6","time":1,"ki',
    "no JSON": b"\xff\xfe\n",
    "half of a surrogate pair": b'{"position":"e0:6","time":1,"kind":"DONE","what":"\\ud800"}\n',
    "deep nesting": 100_000 * b"[" + b"\n",
    "no kind of ours": b'{"position":"e0:6","time":1,"kind":"NONE","what":""}\n',
    "a time that is none": b'{"position":"e0:6","time":1e400,"kind":"DONE","what":""}\n',
    "a number that is too large": b'{"position":"e0:99999999999999999999","time":1,"kind":"DONE","what":""}\n',
    "a number that falls": GOOD.replace(b":5", b":4"),
    "a list": b"[]\n",
    "subjects that are none": b'{"position":"e0:6","time":1,"kind":"DONE","what":"","subjects":[1]}\n',
    "no end": 3 * HALF * b".",
}


@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_read_is_left_out_and_said(
    name: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(path, GOOD + BAD[name])
    life = Life(path)
    life.note("new")
    await life.end()
    assert capsys.readouterr().out.count("events that cannot be read are left out") == 1
    assert Life(path).told() == ["good", "started", "new", "started"]
    assert not capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name, line in BAD.items() if line.endswith(b"\n")])
async def test_what_cannot_be_read_costs_no_event_after_it(name: str, path: Path) -> None:
    put(path, GOOD + BAD[name] + GOOD.replace(b":5", b":7"))
    life = Life(path)
    assert life.told() == ["good", "good", "started"]
    entries, missed = life.journal.after(5)
    assert (entries[0].number, missed) == (7, 1), "the gap is told"
    life.kill()


async def test_a_last_line_that_is_whole_but_for_its_line_feed_is_kept_and_nothing_appended_to_it(path: Path) -> None:
    put(path, GOOD + GOOD.replace(b":5", b":6").strip())
    life = Life(path)
    life.note("new")
    await life.end()
    assert Life(path).told() == ["good", "good", "started", "new", "started"]


async def test_events_of_an_older_release_are_kept_and_written_anew(path: Path) -> None:
    put(path.with_name("x.events.old"), GOOD.replace(b":5", b":4"))
    put(path, GOOD + GOOD.replace(b":5", b":6"))
    for starts in range(1, 3):
        life = Life(path)
        assert life.told() == 3 * ["good"] + starts * ["started"]
        await life.end()
    assert b"\n{" not in content(path)
    assert not path.with_name("x.events.old").exists()


def a_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [a_link, a_fifo])
async def test_what_is_no_file_is_replaced(make: Callable[[Path], None], path: Path) -> None:
    make(path)
    life = Life(path)
    await life.end()
    assert Life(path).told() == ["started", "started"]


async def said_once(life: Life, capsys: pytest.CaptureFixture[str], reason: str) -> None:
    for word in ("a", "b"):
        life.note(word)
        await life.file.write(life.journal)
    assert life.told()[-2:] == ["a", "b"]
    assert capsys.readouterr().out.count(reason) == 1


async def test_a_directory_that_is_none_costs_only_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    await said_once(Life(tmp_path / "file" / "x.events"), capsys, "events are not kept for a restart")


async def test_a_second_process_keeps_its_events_in_memory_until_the_first_has_ended(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Life(path)
    second = Life(path)
    await said_once(second, capsys, "another process writes there")
    await first.end()
    await second.end()
    assert Life(path).told() == ["started", "a", "b", "started"]


async def test_a_full_disk_leaves_whole_lines_and_is_used_again_when_there_is_room(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_disk
    life = Life(path)
    await life.file.write(life.journal)
    put(path.with_name("ballast"), 24_576 * b".")
    life.note(*(str(number) + 200 * "." for number in range(40)))
    for _ in range(2):
        await life.file.write(life.journal)
    assert content(path).endswith(b"\n")
    assert content(path).count(b"\n") == 1
    assert capsys.readouterr().out.count("events are not kept for a restart") == 1
    put(path.with_name("ballast"), b"")
    await life.end()
    assert "events are kept for a restart again" in capsys.readouterr().out
    assert len(Life(path).told()) == 42


async def test_what_is_noted_is_in_the_file_soon_without_being_asked_for(path: Path) -> None:
    life = Life(path)
    job = asyncio.ensure_future(life.file.run(life.journal))
    try:
        await eventually(lambda: content(path), contains(b"started"), 30)
    finally:
        job.cancel()
        await life.end()


async def test_events_that_quote_megabytes_survive_with_their_first_words(path: Path) -> None:
    first = Life(path)
    long = "x" * (1 << 20)
    for number in range(40):
        subjects = (Subject(f"{number}{long}", long),)
        first.journal.note(Event(Kind.DONE, f"{number} {long}", f"for {long}", subjects=subjects, subject_count=1))
    await first.end()
    assert sum(len(each.read_bytes()) for each in path.parent.iterdir()) < 2 * HALF
    second = Life(path)
    assert [what[:3].strip(" x") for what in second.told()] == ["sta", *map(str, range(40)), "sta"]
    assert {entry.event.cause[:5] for entry in second.all()} == {"", "for x"}
    second.kill()
