"""How often etcd is asked while it is away: counted over hours that pass at once."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.stores.etcd.client import Timing
from flannelette.services.lease.stores.etcd.prefix import Keyspace
from flannelette.services.lease.stores.etcd.store import Watcher
from flannelette.services.lease.stores.etcd.transactor import Replica
from flannelette.services.lease.stores.etcd.values import (
    HistoryLost,
    Newest,
    NotAllowed,
    Page,
    Position,
    WatchBatch,
)
from flannelette.services.lease.stores.store import Snapshot
from tests.virtual_time import run_virtually

HOUR = 3600.0
KEYS = Keyspace("/net")
TIMING = Timing()


class FakeClient:
    """Counts listings and watches; `listing` and `watching` say how each one ends."""

    def __init__(self) -> None:
        self.listings = self.watches = self.resumed = 0
        self.listing: Callable[[], Exception | None] = lambda: None
        self.watching: Exception = Unavailable("away")
        self.takes = 0.0
        """Seconds that a failure takes: a frozen etcd lets us wait."""
        self.open_for = 0.0
        """Seconds that a watch lasts."""

    async def pages(self, prefix: bytes) -> AsyncIterator[Page]:
        self.listings += 1
        if error := self.listing():
            await asyncio.sleep(self.takes)
            raise error
        yield Page((), Position(1, 1))

    async def require_history(self, prefix: bytes, position: Position, newest: Newest) -> None:
        self.resumed += 1

    async def watch(self, prefix: bytes, position: Position) -> AsyncIterator[WatchBatch]:
        self.watches += 1
        yield WatchBatch((), position)
        await asyncio.sleep(self.open_for)
        raise self.watching


def follow(client: FakeClient, seconds: float) -> list[object]:
    """What the watcher tells in that time."""

    async def main() -> list[object]:
        replica = Replica(client, KEYS, ConnectedNodes())  # type: ignore[arg-type]  # a fake
        watcher = Watcher(client, replica, TIMING)  # type: ignore[arg-type]  # a fake
        events: list[object] = []
        try:
            async with asyncio.timeout(seconds):
                async for event in watcher.events():
                    events.append(event)  # noqa: PERF401 - what was told before the end counts
        except TimeoutError:
            pass
        return events

    return run_virtually(main())


@pytest.mark.parametrize("takes", [0.0, 10.0], ids=["refused at once", "frozen"])
def test_an_etcd_that_is_away_is_asked_after_pauses_of_one_to_two_seconds(takes: float) -> None:
    client = FakeClient()
    client.listing, client.takes = lambda: Unavailable("away"), takes
    events = follow(client, HOUR)
    assert HOUR / (2 + takes) <= client.listings <= HOUR / (1 + takes) + 5
    assert len(events) == 1, "the same news once"


def test_an_etcd_that_does_not_let_us_in_is_asked_twice_to_four_times_a_minute() -> None:
    client = FakeClient()
    client.listing = lambda: NotAllowed("wrong password")
    follow(client, HOUR)
    assert 120 <= client.listings <= 240 + 10


def test_a_watch_that_breaks_as_soon_as_it_is_open_is_opened_after_ever_longer_pauses() -> None:
    client = FakeClient()
    follow(client, HOUR)
    assert HOUR / 2 <= client.watches <= HOUR + 5
    assert (client.listings, client.resumed) == (1, client.watches - 1), "without a listing"


def test_a_history_that_is_lost_again_and_again_is_listed_after_ever_longer_pauses() -> None:
    client = FakeClient()
    client.watching = HistoryLost("compacted")
    assert all(not isinstance(event, Exception) for event in follow(client, HOUR))
    assert HOUR / 2 <= client.listings <= HOUR + 5


def test_a_listing_after_another_history_says_so_once() -> None:
    client = FakeClient()
    client.watching = HistoryLost("another cluster answers", is_replaced=True)
    listed = [event.is_other_history for event in follow(client, 10) if isinstance(event, Snapshot)]
    assert len(listed) > 1
    assert listed == [False, *[True] * (len(listed) - 1)]
    client.watching = HistoryLost("compacted")
    assert not any(event.is_other_history for event in follow(client, 10) if isinstance(event, Snapshot))


def test_a_watch_that_was_open_for_a_while_is_opened_again_at_once() -> None:
    client = FakeClient()
    client.open_for = 60.0
    events = follow(client, HOUR)
    assert client.watches >= HOUR / 60.1, "a tenth of a second at most between them"
    assert sum(isinstance(event, Snapshot) for event in events) == 1
