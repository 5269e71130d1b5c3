"""The table in a file, for the process that comes after."""

import asyncio
import errno
import os
import time
from pathlib import Path

import pytest

from flannelette.services.core.leases.table import Table, Upserted
from flannelette.services.runtime import state
from tests.examples.leases import NETWORK, by_name, make_lease
from tests.faults.descriptors import without_descriptors
from tests.stores.kept import keeping, recall, remember, start_and_stop_without_a_table
from tests.virtual_time import now, run_virtually

LEASES = [make_lease(number) for number in range(1, 1301)]


def test_what_a_process_leaves_is_what_the_next_one_recalls(tmp_path: Path) -> None:
    path = tmp_path / "table"
    remember(path, *LEASES)
    table = recall(path)
    assert table.leases == by_name(*LEASES)
    assert (table.network, table.synced) == (NETWORK, True)
    assert table.store is not None
    assert table.store.kind == "fake"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table"]
    assert path.stat().st_mode & 0o077 == 0


def test_without_a_descriptor_the_memory_is_empty_and_the_service_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "table"
    remember(path, *LEASES[:3])
    with without_descriptors():
        assert recall(path) == Table()
    assert recall(path).leases == by_name(*LEASES[:3])


def test_what_is_served_now_stands_for_what_was_then(tmp_path: Path) -> None:
    path = tmp_path / "table"
    remember(path, *LEASES[:3])
    served = by_name(make_lease(1, version=2), LEASES[1], LEASES[9])
    assert recall(path, served).leases == by_name(make_lease(1, version=2), *LEASES[1:3])


def test_a_lease_that_cannot_be_read_costs_the_memory_no_other(tmp_path: Path) -> None:
    path = tmp_path / "table"
    too_long = make_lease(3, node="n" * 513)
    remember(path, *LEASES[:2], too_long)
    assert recall(path).leases == by_name(*LEASES[:2])


def test_a_change_is_kept_soon_and_a_kill_loses_no_more(tmp_path: Path) -> None:
    path = tmp_path / "table"

    async def life() -> None:
        async with keeping(path, LEASES[0]) as process:
            for lease in LEASES[1:5]:
                process.tells(Upserted(lease))
            await asyncio.sleep(2)
            assert set(recall(path).leases) == {lease.name for lease in LEASES[:5]}

    run_virtually(life())


def test_before_the_first_snapshot_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "table"
    remember(path, LEASES[0])
    start_and_stop_without_a_table(path)
    assert set(recall(path).leases) == {LEASES[0].name}


def test_a_file_that_is_missing_damaged_or_too_old_is_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "table"
    assert recall(path) == Table()
    assert recall(tmp_path / "no" / "table") == Table()
    remember(path, *LEASES[:20])
    whole = path.read_bytes()
    for damaged in (b"", b"x", whole[:100], whole[200:], b"\xff" * 100):
        path.write_bytes(damaged)
        assert recall(path) == Table()
    path.write_bytes(whole[: len(whole) // 2])
    rest = recall(path).leases
    assert 5 < len(rest) < 15
    assert rest.items() <= by_name(*LEASES).items(), "what the disk still has"
    path.write_bytes(whole)
    assert len(recall(path).leases) == 20
    os.utime(path, (time.time() - 90_000,) * 2)
    assert recall(path) == Table()


def test_a_directory_that_cannot_be_written_is_no_trouble(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        remember(tmp_path / "no" / "table", LEASES[0])
    assert "is not kept" in capsys.readouterr().out


def test_what_changes_while_the_table_is_written_or_in_the_pause_after_it_is_written_too(tmp_path: Path) -> None:
    path = tmp_path / "table"

    async def life() -> None:
        async with keeping(path, *LEASES[:1000]) as process:
            process.tells(Upserted(LEASES[1000]))
            await asyncio.sleep(1.5)
            assert len(recall(path).leases) == 1001
            process.tells(Upserted(LEASES[1001]))
            await asyncio.sleep(10)
            assert LEASES[1001].name in recall(path).leases, "as a kill would leave it"

    run_virtually(life())


def test_a_table_that_a_full_disk_has_not_taken_is_written_once_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tries = tmp_path / "table", list[float]()

    async def life() -> None:
        def fail(*_: object, **__: object) -> None:
            tries.append(now())
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        async with keeping(path) as process:
            with monkeypatch.context() as full:
                full.setattr(state, "replace_bytes", fail)
                process.tells(Upserted(LEASES[0]))
                await asyncio.sleep(300)
                assert process.problem
            await asyncio.sleep(20)
            assert not process.problem
            assert recall(path).leases == by_name(LEASES[0])

    run_virtually(life())
    assert 20 <= len(tries) <= 30, "without another change, and not without pause"


def test_a_table_that_never_changes_is_worth_remembering_as_long_as_the_process_lives(tmp_path: Path) -> None:
    path = tmp_path / "table"

    async def life() -> None:
        async with keeping(path, LEASES[0]):
            await asyncio.sleep(10)
            os.utime(path, (time.time() - 90_000,) * 2)  # a day passes
            await asyncio.sleep(86_400)
            assert recall(path).leases == by_name(LEASES[0]), "as a kill would leave it"

    run_virtually(life())
