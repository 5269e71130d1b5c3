"""Every file that services keep for their next start: what writes it, what a start reads of it, and an older form."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from flannelette.services.cloud.writer import OwnedRoutes
from flannelette.services.core.leases.table import Step, StoreStatus, Upserted
from flannelette.services.dataplane.commands import HookFile
from flannelette.services.dataplane.events import Event, NodeEventKind, NodeJournal
from flannelette.services.dataplane.netlink.objects import Hook
from flannelette.services.lease.admission import SnapshotCache
from flannelette.services.lease.stores.store import Snapshot
from flannelette.services.lease.watch import SYNCED, Broker
from flannelette.services.runtime.cache import StateFile, table_records
from flannelette.services.runtime.events import EventFile
from flannelette.services.runtime.lease.wire import step_to_bytes
from flannelette.services.runtime.state import (
    UnreadableState,
)
from tests.examples.leases import NETWORK, by_name, make_lease
from tests.examples.state_files import encode
from tests.virtual_time import run_virtually

LEASES: Final = [make_lease(number) for number in range(1, 6)]
HOOKS: Final = [
    Hook(f"10.5.{n}.0/24", "add $SUBNET", "del $SUBNET", (("SUBNET", f"10.5.{n}.0/24"),), is_earlier=True)
    for n in range(1, 5)
]
ROUTES: Final = [("rtb", f"10.5.{number}.0/24", "eni-1") for number in range(1, 5)]
SUBNETS: Final = (ip_network("10.5.1.0/24"),)


@dataclass(frozen=True)
class Kind:
    """A kind of file: its name, what writes it, and the facts that a start reads of it."""

    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], Set[object]]
    older: bytes
    """The same facts as release 0.2.0 has written them."""


def _write_state(path: Path) -> None:
    with StateFile(str(path.parent), "dataplane", "m1") as file:
        table = table_records(NETWORK, LEASES, StoreStatus("etcd", True))
        assert file.put(encode("dataplane", "n1", LEASES[0], SUBNETS, table, machine="m1"))


def _read_state(path: Path) -> Set[object]:
    with StateFile(str(path.parent), "dataplane", "m1") as file:
        found = file.state_of("n1")
        if found is None:
            return frozenset()
        facts = {found[0].own, found[0].previous_subnets, found[0].network}
        with suppress(UnreadableState):
            facts |= set(found[0].table().leases.values())
        return facts - {None}


def _write_table(path: Path) -> None:
    async def life() -> None:
        broker = Broker("fake", epoch="epoch")
        broker.take(Snapshot(by_name(*LEASES), NETWORK))
        broker.stop()
        await SnapshotCache(path, broker).write()

    run_virtually(life())


def _read_table(path: Path) -> Set[object]:
    table = SnapshotCache(path, Broker("fake", epoch="epoch")).recall({})
    return {*table.leases.values(), table.network} - {None}


def _write_events(path: Path) -> None:
    async def life() -> None:
        journal, file = NodeJournal(), EventFile(path, NodeEventKind)
        file.read()
        for number in range(5):
            journal.note(Event(NodeEventKind.OWN_LEASE, f"own lease {number}", "a cause"))
        await file.close(journal)

    asyncio.run(life())


def _read_events(path: Path) -> Set[object]:
    file = EventFile(path, NodeEventKind)
    found = {(entry.number, entry.event, entry.time) for entry in file.read()}
    assert file._log
    file._log.close()
    return found


def _old_state() -> bytes:
    """As 0.2.0 writes it; tests/golden/releases has files of it."""
    own = b64encode(step_to_bytes(Step(changes=(Upserted(LEASES[0]),)))).decode()
    header = {"node": "n1", "own_lease": own, "former_subnets": [str(each) for each in SUBNETS]}
    rest = json.dumps(header).encode() + b"\n" + step_to_bytes(_step())
    return b"flannelette-dataplane-state 1 " + sha256(rest).hexdigest().encode() + b"\n" + rest


def _step() -> Step:
    return Step(reset=True, changes=tuple(map(Upserted, LEASES)), network=NETWORK, synced=True)


def _sized(*messages: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4) + each for each in messages)


KINDS: Final = [
    Kind("dataplane.state", _write_state, _read_state, _old_state()),
    Kind("lease.table", _write_table, _read_table, _sized(step_to_bytes(replace(_step(), synced=False)), SYNCED)),
    Kind(
        "dataplane.hooks",
        lambda path: HookFile(path).write(HOOKS),
        lambda path: set(HookFile(path).read()),
        json.dumps(
            [
                {
                    "subject": each.subject,
                    "put": each.put,
                    "delete": each.delete,
                    "stdin": "",
                    "environment": dict(each.environment),
                }
                for each in HOOKS
            ]
        ).encode(),
    ),
    Kind(
        "cloud.routes",
        lambda path: OwnedRoutes(path).update(ROUTES, ()),
        lambda path: OwnedRoutes(path).keys,
        json.dumps(ROUTES).encode(),
    ),
    Kind("dataplane.events", _write_events, _read_events, b""),
]


def start_with_a_table(path: Path) -> None:
    """A lease service starts, and reads the table that the one before has left."""
    _read_table(path)


def read_events(path: Path) -> object:
    """A dataplane starts, and reads its events."""
    return EventFile(path, NodeEventKind).read()
