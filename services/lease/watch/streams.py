"""The WatchLeases streams: what to send next, given the position of the watcher and the table of the broker."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from typing import Final

from flannelette.services.core.leases.table import (
    NO_OVERRIDES,
    NodeOverrides,
    PublicIpOverrides,
    Step,
    StoreStatus,
    Table,
    changes_between,
    overrides_between,
)
from flannelette.services.lease import metrics
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.lease.watch.steps import NOTHING, SYNCED
from flannelette.services.runtime.lease.wire import step_to_bytes

PAUSE: Final = 0.002
"""Seconds between two changes that come apart. A message costs a dataplane as much as some ten changes in it."""
_PAUSE_OF_A_FOLLOWER: Final = 0.001
"""Seconds by which a follower lengthens the time between two changes: a message to it costs a tenth of them."""
_LONGEST_PAUSE: Final = 2.0
STALLED_SECONDS: Final = 28.0
"""Seconds that a client has to take a message: as many as one of which nothing is wanted has to answer a ping."""


async def watch_all(
    broker: Broker,
    cursor: str,
    dataplane_of: str = "",
    *,
    machine: str = "",
    is_relay: bool = False,
    pause: float = 0.0,
) -> AsyncGenerator[bytes, None]:
    """VIEW_ALL, serialised; the guarantees are those of WatchLeases in lease.proto.

    A watcher that reads slowly costs its position and the one message that is being sent: it gets the difference
    between its table and the newest one, or a reset when the log does not reach back to it.

    A change is sent at once, unless the last one was less than `pause` seconds ago: changes within that time are
    sent together, in as many messages as they take. With many followers the time is longer, up to two seconds, so
    that changes all the time leave most of a core to those who acquire a lease.

    `dataplane_of` is the node that is connected while this stream lives, once the table is known; empty: the watcher
    is no dataplane. Raises NameTaken as soon as another machine than `machine` is known to have the node's name.
    The stream has what operators have chosen for this node; that of a relay (`is_relay`), for every node.
    """
    with _counted(broker, is_follower=True), ExitStack() as admitted:
        async for message in _until_synced(broker):
            yield message
        stream = admitted.enter_context(broker.connected_nodes.stream(dataplane_of, machine))
        position, told = StreamPosition(broker, cursor), None
        known, chosen = broker.overrides, _concerning(broker.overrides, dataplane_of, is_relay=is_relay)
        if dataplane_of or is_relay:
            yield step_to_bytes(Step(overrides=NodeOverrides(chosen, complete=True)))
        if position.is_resumed:
            yield SYNCED + step_to_bytes(Step(cursor=cursor))  # a bookmark: you are connected
        now, due = asyncio.get_running_loop().time, 0.0
        while True:
            stream.require_name()
            if position.is_behind:
                if (rest := due - now()) > 0:
                    await asyncio.sleep(rest)
                due = now() + (pause and max(pause, min(broker.followers * _PAUSE_OF_A_FOLLOWER, _LONGEST_PAUSE)))
            if (following := position.next_message()) is not None:
                if position.is_behind:
                    due = 0.0  # the message is full, and nothing is won by waiting
                yield _noted(following)
            elif told != (lost := broker.lost.get(dataplane_of)):
                told = lost
                if lost:
                    yield step_to_bytes(Step(lost=lost.name))
            elif known is not broker.overrides:
                before, known = chosen, broker.overrides
                chosen = _concerning(known, dataplane_of, is_relay=is_relay)
                if changed := overrides_between(before, chosen):
                    yield step_to_bytes(Step(overrides=changed))
            else:
                await broker.notifier.next()


def _concerning(
    overrides: Mapping[str, PublicIpOverrides], node: str, *, is_relay: bool
) -> Mapping[str, PublicIpOverrides]:
    """The overrides that a watcher gets."""
    return overrides if is_relay else {node: overrides[node]} if node in overrides else NO_OVERRIDES


async def watch_own(
    broker: Broker, node: str, *, is_dataplane: bool = False, machine: str = ""
) -> AsyncGenerator[bytes, None]:
    """VIEW_OWN, serialised; wakes only for the leases of the node, the network and the store.

    It keeps no position in the log but compares what it has shown with what is. So every stream starts with a reset,
    whatever the cursor: a lease and the network are less than a record of what was missed.

    `is_dataplane`: the node is connected while this stream lives, as that of `watch_all`; a relay says so for those
    behind it.
    """
    with _counted(broker), ExitStack() as admitted:
        async for message in _until_synced(broker):
            yield message
        stream = admitted.enter_context(broker.connected_nodes.stream(node if is_dataplane else "", machine))
        _count_reset("own_view")
        shown, told = Table(), None
        while True:
            stream.require_name()
            step = _own_step(broker, shown, node)
            if step != NOTHING:
                shown.fold(step)
                yield _noted(step_to_bytes(step))
            elif is_dataplane and told != (lost := broker.lost.get(node)):
                told = lost
                if lost:
                    yield step_to_bytes(Step(lost=lost.name))
            else:
                await broker.notifier.next(node)


def _noted(message: bytes) -> bytes:
    metrics.MESSAGES.inc()
    metrics.MESSAGE_BYTES.inc(len(message))
    return message


async def _until_synced(broker: Broker) -> AsyncIterator[bytes]:
    """Yields steps until the first complete snapshot: only the state of the store, and what is wrong with the
    network.
    """
    shown: tuple[StoreStatus, str] | None = None
    while not broker.table.synced:
        status = (broker.store_status, broker.table.network_error)
        if status == shown:
            await broker.notifier.next()
        else:
            shown = status
            yield step_to_bytes(Step(store=status[0], network_error=status[1]))


def _own_step(broker: Broker, shown: Table, node: str) -> Step:
    """What takes an own view from what it shows to the table as it is. A lease that changed hands is removed."""
    table = broker.table
    is_new = (table.network, table.network_error) != (shown.network, shown.network_error)
    step = Step(
        reset=not shown.synced,
        changes=changes_between(shown.leases, broker.leases_by_node.of(node)),
        network=table.network if is_new else None,
        network_error=table.network_error if is_new else "",
        store=table.store if table.store != shown.store else None,
    )
    return step if step == NOTHING else replace(step, synced=True, cursor=broker.change_log.cursor)


@contextmanager
def _counted(broker: Broker, *, is_follower: bool = False) -> Iterator[None]:
    broker.watchers += 1
    broker.followers += is_follower
    metrics.WATCHERS.set(broker.watchers)
    try:
        yield
    finally:
        broker.watchers -= 1
        broker.followers -= is_follower
        metrics.WATCHERS.set(broker.watchers)


class StreamPosition:
    """What a VIEW_ALL watcher has, and what it gets next: a snapshot, if it needs one, then the changes. No IO.

    It keeps a number and a name, no matter how far behind it is. A snapshot is taken from the table as it is when
    each message is made; before it is complete, what has changed since its first message is sent after it. So it ends
    at one moment of the table, that of its cursor, and a table that changes all the time holds no snapshot up.
    """

    def __init__(self, broker: Broker, cursor: str) -> None:
        self._broker = broker
        self._position = broker.change_log.position(cursor)
        """The entry of the history up to which it has everything; None: it needs a snapshot."""
        self._after: str | None = None
        """While the leases of a snapshot are sent: the last one; None before and after."""
        self._staged = False
        """The snapshot that has begun is not complete yet."""
        if self._position is None:
            ours = cursor.startswith(f"{broker.change_log.epoch}:")
            _count_reset("compacted" if ours else "other_epoch" if cursor else "no_cursor")

    @property
    def is_resumed(self) -> bool:
        """Whether the cursor was one to go on from."""
        return self._position is not None

    @property
    def is_behind(self) -> bool:
        """Whether a change waits that is no part of a snapshot."""
        is_following = self._position is not None and self._after is None and not self._staged
        return is_following and self._position != self._broker.change_log.last

    def next_message(self) -> bytes | None:
        """What to send next, the same bytes for all watchers at the same position; None: it has everything."""
        change_log = self._broker.change_log
        if self._position is None:
            self._position = change_log.last
            return self._part_of_snapshot(self._position)
        if self._after is not None:
            return self._part_of_snapshot(self._position)
        if self._position == change_log.last:
            return None
        update = change_log.since(self._position)
        if update is not None and self._staged and update.position != change_log.last:
            update = change_log.since(self._position, staged=True)
        if update is None:
            _count_reset("too_slow")
            self._position = None
            return self.next_message()
        self._position = update.position
        self._staged = self._staged and update.position != change_log.last
        return update.message

    def _part_of_snapshot(self, begun: int) -> bytes:
        part = self._broker.snapshot(self._after, begun)
        self._after = None if part.ends else part.last
        self._staged = not part.ends or begun != self._broker.change_log.last
        return part.body


async def end_if_stalled(messages: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same messages; cancels the task that sends them when one message does not get away for 28 s.

    gRPC's ping waits behind the messages in the socket's buffer. Where a frozen process has let that buffer fill, the
    ping is never sent, and so never fails.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - only a task can ask for a message
    since: float | None = None
    timer: asyncio.TimerHandle | None = None

    def check() -> None:
        nonlocal timer
        timer = None
        if since is not None:
            if (rest := since + STALLED_SECONDS - loop.time()) > 0:
                timer = loop.call_later(rest, check)
            else:
                task.cancel()

    try:
        async with aclosing(messages):
            async for message in messages:
                since = loop.time()
                timer = timer or loop.call_later(STALLED_SECONDS, check)  # one for many messages: it costs 3 us
                yield message
                since = None
    finally:
        if timer is not None:
            timer.cancel()


def _count_reset(reason: str) -> None:
    metrics.RESETS.labels(reason).inc()
