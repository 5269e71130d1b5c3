"""One WatchLeases stream each: what to send next, given where the watcher is and what the broker has."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from services.core.choices import NONE, Choices, Chosen, choices_between
from services.core.table import Step, StoreStatus, Table, changes_between
from services.lease import metrics
from services.lease.broker import Broker
from services.lease.encoding import SYNCED, encode
from services.lease.place import Place, count_reset
from services.lease.steps import NOTHING

PAUSE: Final = 0.002
"""Seconds between two changes that come apart. A message costs a dataplane as much as some ten changes in it."""


async def watch_all(
    broker: Broker, cursor: str, dataplane_of: str = "", *, is_relay: bool = False, pause: float = 0.0
) -> AsyncGenerator[bytes, None]:
    """VIEW_ALL, serialised; the guarantees are those of WatchLeases in lease.proto.

    A watcher that reads slowly costs its place and the one message that is being sent: it gets the difference between
    its table and the newest one, or a reset when the history does not reach back to it.

    A change is told at once, unless the last one was less than `pause` seconds ago: what comes meanwhile is told
    together, in as many messages as it takes.

    `dataplane_of` is the node that is connected while this stream lives; empty: whoever watches is no dataplane.
    It is told what operators have chosen for it; a relay (`is_relay`), what they have for every node.
    """
    with _counted(broker), broker.presence.stream(dataplane_of):
        async for message in _until_synced(broker):
            yield message
        place, told = Place(broker, cursor), None
        known, chosen = broker.choices, _concerning(broker.choices, dataplane_of, is_relay=is_relay)
        if dataplane_of or is_relay:
            yield encode(Step(choices=Choices(chosen, complete=True)))
        if place.is_resumed:
            yield SYNCED + encode(Step(cursor=cursor))  # a bookmark: you are connected
        now, due = asyncio.get_running_loop().time, 0.0
        while True:
            if place.is_behind:
                if (rest := due - now()) > 0:
                    await asyncio.sleep(rest)
                due = now() + pause
            news = place.next_message()
            if news is not None:
                if place.is_behind:
                    due = 0.0  # the message is full, and nothing is won by waiting
                metrics.MESSAGES.inc()
                yield news
            elif told != (lost := broker.lost.get(dataplane_of)):
                told = lost
                if lost:
                    yield encode(Step(lost=lost.name))
            elif known is not broker.choices:
                before, known = chosen, broker.choices
                chosen = _concerning(known, dataplane_of, is_relay=is_relay)
                if changed := choices_between(before, chosen):
                    yield encode(Step(choices=changed))
            else:
                await broker.signals.next()


def _concerning(choices: Mapping[str, Chosen], node: str, *, is_relay: bool) -> Mapping[str, Chosen]:
    """Those of the choices that a watcher is told."""
    return choices if is_relay else {node: choices[node]} if node in choices else NONE


async def watch_own(broker: Broker, node: str, *, is_dataplane: bool = False) -> AsyncGenerator[bytes, None]:
    """VIEW_OWN, serialised; wakes only for the leases of the node, the network and the store.

    It keeps no place in the history but compares what it has shown with what is. So every stream starts with a reset,
    whatever the cursor: a lease and the network are less than a record of what was missed.

    `is_dataplane`: the node is connected while this stream lives; a relay says so for those behind it.
    """
    with _counted(broker), broker.presence.stream(node if is_dataplane else ""):
        async for message in _until_synced(broker):
            yield message
        count_reset("own_view")
        shown, told = Table(), None
        while True:
            step = _own_step(broker, shown, node)
            if step != NOTHING:
                shown.fold(step)
                metrics.MESSAGES.inc()
                yield encode(step)
            elif is_dataplane and told != (lost := broker.lost.get(node)):
                told = lost
                if lost:
                    yield encode(Step(lost=lost.name))
            else:
                await broker.signals.next(node)


async def _until_synced(broker: Broker) -> AsyncIterator[bytes]:
    """Before the first complete snapshot: only what is wrong."""
    shown: tuple[StoreStatus, str] | None = None
    while not broker.table.synced:
        status = (broker.store_status, broker.table.network_error)
        if status == shown:
            await broker.signals.next()
        else:
            shown = status
            yield encode(Step(store=status[0], network_error=status[1]))


def _own_step(broker: Broker, shown: Table, node: str) -> Step:
    """What takes an own view from what it shows to the table as it is. A lease that changed hands is removed."""
    table = broker.table
    news = (table.network, table.network_error) != (shown.network, shown.network_error)
    step = Step(
        reset=not shown.synced,
        changes=changes_between(shown.leases, broker.holdings.of(node)),
        network=table.network if news else None,
        network_error=table.network_error if news else "",
        store=table.store if table.store != shown.store else None,
    )
    return step if step == NOTHING else replace(step, synced=True, cursor=broker.history.cursor)


@contextmanager
def _counted(broker: Broker) -> Iterator[None]:
    broker.watchers += 1
    metrics.WATCHERS.set(broker.watchers)
    try:
        yield
    finally:
        broker.watchers -= 1
        metrics.WATCHERS.set(broker.watchers)
