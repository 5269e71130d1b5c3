"""What a lease service sends: to dataplane, masq and relays by their feed, to another cluster by its import."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.core.network import contains
from flannelette.services.lease.imports import cluster as module
from flannelette.services.lease.imports.cluster import ImportedCluster, Imports
from flannelette.services.lease.imports.policy import Import
from flannelette.services.lease.stores.store import Snapshot
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.lease.feed import Feed, read_step, steps_of
from flannelette.services.runtime.lease.wire import held_lease, step_from_bytes, step_to_bytes, step_to_proto
from flannelette.services.runtime.rpc.transport import PLAIN
from tests.examples.leases import NETWORK, SMALL, by_name, make_lease
from tests.fuzz.targets.calls.request import run

_FIRST = Step(reset=True, network=NETWORK, changes=(Upserted(make_lease(1)),), synced=True, cursor="e:1")
_LAST = Step(changes=(Upserted(make_lease(2)),), synced=True, cursor="e:3")


class _Connection:
    """That brings one stream of messages, and then no other."""

    address, node, machine, absent_reason = "unix:lease.sock", "n1", "", ""

    def __init__(self, *messages: pb.WatchLeasesResponse) -> None:
        self._messages: tuple[pb.WatchLeasesResponse, ...] | None = messages

    def watch(self, request: pb.WatchLeasesRequest) -> AsyncIterator[Step]:
        if self._messages is None:
            raise asyncio.CancelledError
        messages, self._messages = self._messages, None
        return steps_of(self._stream(messages), read_step)

    async def _stream(self, messages: tuple[pb.WatchLeasesResponse, ...]) -> AsyncIterator[pb.WatchLeasesResponse]:
        for message in messages:
            yield message


def step_in(data: bytes) -> tuple[bytes, Any] | None:
    """The message of a case."""
    try:
        return b"", pb.WatchLeasesResponse.FromString(data)
    except DecodeError:
        return None


def lease_feed(data: bytes) -> None:
    """Between two good messages anything may come: what it does not name stays, and what comes behind it counts."""
    for answer in (pb.AcquireLeaseResponse, pb.RenewLeaseResponse):
        with suppress(DecodeError, FlanneletteError):
            held_lease(answer.FromString(data))
    found = step_in(data)
    if found is None:
        return
    message = found[1]
    named = {change.upserted.name or change.removed for change in message.changes}
    feed = Feed(
        cast("Any", _Connection(step_to_proto(_FIRST), message, step_to_proto(_LAST))),
        pb.VIEW_ALL,
        lambda names: None,
    )
    run(_followed(feed))
    assert feed.table.synced
    assert feed.table.leases.keys() >= {make_lease(2).name}
    if make_lease(1).name not in named and not message.reset:
        assert feed.table.leases[make_lease(1).name] == make_lease(1)


async def _followed(feed: Feed) -> None:
    with suppress(asyncio.CancelledError):
        await feed.run()


_ALLOWED: Final = ip_network("10.0.0.0/14")
_POLICY: Final = Import("west", "unix:west.sock", (_ALLOWED,))
_OWN: Final = by_name(*(make_lease((5 << 8) + number) for number in range(3)))
_GUARD, _PAST_THE_GUARD = 2.0, 8.0
"""Seconds of the virtual clock."""


def imports(data: bytes) -> None:
    """Own leases stay as they are; what comes in is marked, lies where it may, and nodes can read it."""
    if found := step_in(data):
        run(_imported(found[1]))


async def _imported(message: pb.WatchLeasesResponse) -> None:
    shown = _Connection(step_to_proto(_FIRST), message, step_to_proto(_LAST))
    broker = Broker("fake", epoch="epoch", most_entries=100)
    with patch.object(module, "LeaseConnection", lambda *_: shown):
        cluster = ImportedCluster(_POLICY, PLAIN, broker, Path("/nowhere/lease.import.west"), 0.5, _GUARD, 1000)
    imported = Imports([cluster], broker)
    broker.take(Snapshot(_OWN, SMALL))
    running = asyncio.ensure_future(imported.run())
    await asyncio.sleep(_PAST_THE_GUARD)
    running.cancel()
    await asyncio.wait({running})
    table = broker.table
    assert dict(broker.own) == _OWN
    assert table.network is not None
    assert (table.network.families, table.network.imported) == (SMALL.families, (_ALLOWED,))
    for name, lease in table.leases.items() - _OWN.items():
        assert name == lease.name == f"west/{name.partition('/')[2]}"
        assert (lease.cluster, lease.expires_at, lease.reserved) == ("west", None, False)
        assert not lease.node or lease.node.startswith("west/")
        assert all(contains(_ALLOWED, cidr) for cidr in lease.cidrs)
        step = Step(changes=(Upserted(lease),))
        assert step_from_bytes(step_to_bytes(step)) == step
    assert f"west/{make_lease(2).name}" in table.leases
    cluster.to_proto().SerializeToString()
    for finding in imported.findings():
        f"{finding.problem}{finding.cause}{imported.held_reason}".encode()
