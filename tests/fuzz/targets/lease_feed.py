"""What a lease service sends, by the one way in which dataplane, masq and relays take it: its feed and answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

from flannelette.lease.v1 import lease_pb2 as pb
from google.protobuf.message import DecodeError

from services.core.errors import FlanneletteError
from services.core.leases.table import Step, Upserted
from services.runtime.lease.feed import Feed
from services.runtime.lease.lifetime import held_lease
from services.runtime.lease.wire import step_to_proto
from tests.examples.leases import NETWORK, make_lease
from tests.fuzz.targets.calls import run

_FIRST = Step(reset=True, network=NETWORK, changes=(Upserted(make_lease(1)),), synced=True, cursor="e:1")
_LAST = Step(changes=(Upserted(make_lease(2)),), synced=True, cursor="e:3")


class _Connection:
    """That brings one stream of messages, and then no other."""

    address, node, absent_reason = "unix:lease.sock", "n1", ""

    def __init__(self, *messages: pb.WatchLeasesResponse) -> None:
        self._messages: tuple[pb.WatchLeasesResponse, ...] | None = messages
        self.stub = self

    def WatchLeases(self, request: pb.WatchLeasesRequest) -> AsyncIterator[pb.WatchLeasesResponse]:  # noqa: N802
        if self._messages is None:
            raise asyncio.CancelledError
        messages, self._messages = self._messages, None
        return self._stream(messages)

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
