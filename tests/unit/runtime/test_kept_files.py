"""The files that services keep for their next start, after the disk has changed them, or takes nothing any more."""

import asyncio
import errno
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import pytest

from flannelette.services.cloud.owned_routes import OwnedRoutes
from flannelette.services.core.leases.table import StoreStatus, Table
from flannelette.services.dataplane.commands.hook_file import HookFile
from flannelette.services.dataplane.events.journal import Event, EventKind, Journal
from flannelette.services.dataplane.netlink.objects import Hook
from flannelette.services.lease.admission.cache_file import SnapshotCache
from flannelette.services.lease.stores.store import Snapshot
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.runtime.cache import kept_file
from flannelette.services.runtime.cache.kept_file import KeptFile, unwritten
from flannelette.services.runtime.cache.machine import MachineToken
from flannelette.services.runtime.cache.node_state import encode, snapshot_parts
from flannelette.services.runtime.cache.state_file import StateFile
from flannelette.services.runtime.events.event_file import EventFile
from tests.examples.leases import NETWORK, by_name, make_lease
from tests.virtual_time import run_virtually

SOAK: Final = bool(os.environ.get("FLANNELETTE_SOAK"))
FLIPS: Final = 20_000 if SOAK else 300
LEASES: Final = [make_lease(number) for number in range(1, 6)]
HOOK: Final = Hook("10.5.1.0/24", "add $SUBNET", "del $SUBNET", (("SUBNET", "10.5.1.0/24"),), is_earlier=True)
SUBNETS: Final = (ip_network("10.5.1.0/24"),)


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, what writes it, and what a start reads of it; None: nothing."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]


def _write_state(path: Path) -> None:
    with StateFile(str(path.parent), "dataplane", "m1") as file:
        parts = list(snapshot_parts(NETWORK, LEASES, StoreStatus("etcd", True), {}))
        assert file.put(encode("dataplane", "n1", LEASES[0], SUBNETS, parts, machine="m1"))


def _read_state(path: Path) -> object:
    with StateFile(str(path.parent), "dataplane", "m1") as file:
        found = file.state_of("n1")
        return None if found is None else (found[0].own, found[0].previous_subnets, found[0].table().leases)


def _write_table(path: Path) -> None:
    async def life() -> None:
        broker = Broker("fake", epoch="epoch")
        broker.take(Snapshot(by_name(*LEASES), NETWORK))
        broker.stop()
        await SnapshotCache(path).keep(broker)

    run_virtually(life())


def _read_table(path: Path) -> object:
    table = SnapshotCache(path).recall({})
    return None if table == Table() else (table.leases, table.network)


def _write_events(path: Path) -> None:
    async def life() -> None:
        journal, file = Journal(), EventFile(path, EventKind)
        file.read()
        for number in range(5):
            journal.note(Event(EventKind.OWN_LEASE, f"own lease {number}", "a cause"))
        await file.close(journal)

    asyncio.run(life())


def _read_events(path: Path) -> object:
    file = EventFile(path, EventKind)
    found = [(entry.number, entry.event, entry.time) for entry in file.read()]
    os.close(file._lock)
    return found or None


KINDS: Final = [
    Kind("dataplane.state", _write_state, _read_state),
    Kind("lease.table", _write_table, _read_table),
    Kind("dataplane.hooks", lambda path: HookFile(path).write([HOOK]), lambda path: HookFile(path).read() or None),
    Kind(
        "cloud.routes",
        lambda path: OwnedRoutes(path).update([("rtb", "10.5.1.0/24", "eni-1")], ()),
        lambda path: OwnedRoutes(path).keys or None,
    ),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_flipped_bit_of_a_file_costs_the_file_and_is_told_by_its_name(
    tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / kind.name
    kind.write(path)
    whole, expected = path.read_bytes(), kind.read(path)
    assert expected is not None
    for damaged in flipped(whole):
        path.write_bytes(damaged)
        assert kind.read(path) is None
    assert capsys.readouterr().out.count(str(path)) == FLIPS
    kind.write(path)
    assert kind.read(path) == expected


def flipped(whole: bytes) -> Iterable[bytes]:
    chance = random.Random(int(os.environ.get("FLANNELETTE_SEED", 16)))  # noqa: S311 - which bit, no secret
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        yield bytes(damaged)


def test_a_flipped_bit_in_the_events_costs_the_events_from_there_on_and_makes_no_other(tmp_path: Path) -> None:
    path = tmp_path / "dataplane.events"
    _write_events(path)
    whole, expected = path.read_bytes(), _read_events(path)
    assert isinstance(expected, list)
    assert len(expected) == 5
    for damaged in flipped(whole):
        path.write_bytes(damaged)
        found = _read_events(path) or []
        assert isinstance(found, list)
        assert found == expected[: len(found)]


def test_what_cannot_be_read_is_kept_beside_what_is_written_next(tmp_path: Path) -> None:
    file = KeptFile(tmp_path / "lease.table", "kind")
    file.path.write_bytes(b"damaged")
    assert file.read() is None
    assert file.path.read_bytes() == b"damaged", "until something better is there"
    assert file.write([b"new"])
    assert file.read() == b"new"
    assert (tmp_path / "lease.table.refused").read_bytes() == b"damaged"


def test_what_a_killed_process_has_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "lease.table"
    for left in (".lease.table.new", ".lease.table.x8s_3f9", ".lease-blue.table.x8s_3f9"):
        (tmp_path / left).touch()
    SnapshotCache(path).recall({})
    assert [each.name for each in tmp_path.iterdir()] == [".lease-blue.table.x8s_3f9"], "which is another network's"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_takes_nothing_is_a_finding_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file, machine = KeptFile(tmp_path / "cloud.routes", "kind"), MachineToken("")
    assert list(unwritten([file, machine])) == []
    with monkeypatch.context() as full:

        def fail(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        full.setattr(kept_file, "replace_bytes", fail)
        assert not file.write([b""])
        (finding,) = unwritten([file, machine])
        assert (finding.check, finding.is_soon, finding.is_broken) == ("state-file", True, False)
        assert finding.problem == f"Cannot write {file.path}: {os.strerror(number)}."
    assert file.write([b""])
    assert list(unwritten([file, machine])) == []


@pytest.mark.parametrize(
    ("kind", "older"),
    [("dataplane.hooks", b'[{"subject":"10.5.1.0/24","put":"add $SUBNET","delete":"del $SUBNET","stdin":"",'
      b'"environment":{"SUBNET":"10.5.1.0/24"}}]'), ("cloud.routes", b'[["rtb","10.5.1.0/24","eni-1"]]')],
)  # fmt: skip
def test_a_file_of_an_older_release_is_read_as_it_is(tmp_path: Path, kind: str, older: bytes) -> None:
    (row,) = [each for each in KINDS if each.name == kind]
    row.write(tmp_path / "new")
    (tmp_path / "old").write_bytes(older)
    assert row.read(tmp_path / "old") == row.read(tmp_path / "new")
