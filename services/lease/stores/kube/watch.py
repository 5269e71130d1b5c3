"""The nodes as the watch tells of them, what each message means for leases, and how the watch survives outages."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import TypeVar

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.node_overrides import PublicIpOverrides
from flannelette.services.core.leases.table import KUBE, Change, Removed, StoreStatus, Upserted
from flannelette.services.core.limits import LONGEST_REASON
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.progress.notifier import Notifier
from flannelette.services.lease.stores.kube.client import KubeClient
from flannelette.services.lease.stores.kube.node_leases import WITHDRAWN, chosen_for, lease_of
from flannelette.services.lease.stores.kube.settings import Annotations
from flannelette.services.lease.stores.kube.values import (
    Busy,
    Deleted,
    Expired,
    Gone,
    Node,
    Silent,
    Timing,
    WatchBatch,
)
from flannelette.services.lease.stores.store import Changed, Snapshot, StoreEvent
from flannelette.services.runtime.backoff import Backoff

Value = TypeVar("Value")


class Mirror:
    """The nodes and their leases as the watch has delivered them. What changes no lease makes no event.

    A node whose annotations do not parse is refused and keeps the lease that it had, also through a new listing,
    unless its podCIDRs are others now: then it is another node of the same name.
    """

    def __init__(self, network: NetworkConfig, keys: Annotations) -> None:
        self.position = ""
        """Everything up to here is in; empty: nothing was listed yet."""
        self._network = network
        self._keys = keys
        self._nodes: dict[str, Node] = {}
        self._leases: dict[str, Lease] = {}
        self._refused: dict[str, str] = {}
        self._choices: dict[str, PublicIpOverrides] = {}
        self._released: set[str] = set()
        """Nodes whose lease was given back since the last event."""
        self._notifier = Notifier()

    def replace(self, nodes: Iterable[Node], position: str) -> Snapshot:
        """Takes a complete listing."""
        by_name = {node.name: node for node in nodes}
        for name in self._nodes.keys() - by_name.keys():
            self._take(Deleted(name))
        for node in by_name.values():
            self._take(node)
        self.position = position
        self._notifier.wake(None)
        return self.snapshot()

    def fold(self, batch: WatchBatch) -> Changed | None:
        """Takes what happened; None: nothing that anybody has to know."""
        self.position = batch.position
        if all(event == self._nodes.get(event.name) for event in batch.events):
            return None  # nearly every batch: what kubelets write all the time is none of what we take
        refused, overrides = dict(self._refused), dict(self._choices)
        self._released.clear()
        changes = [change for event in batch.events if (change := self._take(event))]
        self._notifier.wake({event.name for event in batch.events})
        event = Changed(
            tuple(changes),
            refused={name: reason for name, reason in self._refused.items() if refused.get(name) != reason},
            cleared=frozenset(refused.keys() - self._refused.keys()),
            released=frozenset(self._released),
            overrides=_copy(self._choices) if self._choices != overrides else None,
        )
        return event if event != Changed() else None

    def snapshot(self) -> Snapshot:
        """Returns all that the mirror holds, as it is now."""
        return Snapshot(
            _copy(self._leases), self._network, refused=_copy(self._refused), overrides=_copy(self._choices)
        )

    @property
    def leases(self) -> Mapping[str, Lease]:
        """The leases by node, as they are now."""
        return self._leases

    async def lease_like(self, lease: Lease) -> None:
        """Returns when the watch has delivered this lease, of any age."""
        while (held := self._leases.get(lease.name)) is None or held.subnets != lease.subnets:
            await self._notifier.next(lease.name)

    async def pod_cidr_of(self, name: str) -> None:
        """Returns when the node of this name has a podCIDR."""
        while not ((node := self._nodes.get(name)) and node.pod_cidrs):
            await self._notifier.next(name)

    def serves(self, name: str) -> bool:
        """Whether this node has a lease."""
        return name in self._leases

    def _take(self, event: Node | Deleted) -> Change | None:
        before = self._nodes.get(event.name)
        if event == before:
            return None
        self._refused.pop(event.name, None)
        self._choices.pop(event.name, None)
        if isinstance(event, Deleted):
            self._nodes.pop(event.name, None)
            return self._settle(event.name, None)
        self._nodes[event.name] = event
        if chosen := chosen_for(event, self._keys):
            self._choices[event.name] = chosen
        stays = before is not None and before.pod_cidrs == event.pod_cidrs
        try:
            is_kept = stays and event.name in self._leases
            lease = lease_of(event, self._network, self._keys, is_kept=is_kept)
        except InvalidInput as error:
            self._refused[event.name] = str(error)[:LONGEST_REASON]
            lease = self._leases.get(event.name) if stays else None
        return self._settle(event.name, lease)

    def _settle(self, name: str, lease: Lease | None) -> Change | None:
        if lease == self._leases.get(name):
            return None
        self._released.discard(name)
        if lease is None:
            del self._leases[name]
            node = self._nodes.get(name)
            if node is not None and node.annotation(self._keys.managed) == WITHDRAWN:
                self._released.add(name)
            return Removed(name)
        self._leases[name] = lease
        return Upserted(lease)


def _copy(mapping: Mapping[str, Value]) -> Mapping[str, Value]:
    return MappingProxyType(dict(mapping))


class Watcher:
    """One iteration of Store.watch().

    * The first event that is no StoreStatus is a Snapshot. A StoreStatus comes when the state changes; that a watch
      ends, as each does after some minutes, is none.
    * A watch that ended, broke or fell silent is resumed where it was, and listed again only when that position has
      expired. Only if it cannot be opened again at once is the API away.
    * Never more than one attempt a pause; pauses double from `retry_first` to `retry_most`, with jitter, are at least
      as long as the server asks for, and start again after a watch that was open for longer than the pause before it.
    """

    def __init__(self, client: KubeClient, mirror: Mirror, timing: Timing, selector: str = "") -> None:
        self._client = client
        self._mirror = mirror
        self._timing = timing
        self._selector = selector
        self._status: StoreStatus | None = None
        self._opened = math.inf
        """When the watch was opened."""

    async def events(self) -> AsyncGenerator[StoreEvent, None]:
        """Yields the store's events for ever."""
        pauses = Backoff(self._timing.retry_first, self._timing.retry_most)
        while True:
            self._opened, asked, error = math.inf, 0.0, ""
            try:
                async with aclosing(self._connection()) as connection:
                    async for event in connection:
                        yield event
            except Silent:  # perhaps the server is frozen, or a way to it is lost: then this fails
                pauses.reset()
                continue
            except Expired:
                self._mirror.position = ""
            except Gone as nothing:
                error = f"the Kubernetes API has no nodes ({nothing}): is it an API server?"
            except Unavailable as unavailable:
                error = str(unavailable)
                asked = unavailable.seconds if isinstance(unavailable, Busy) else 0.0
            if time.monotonic() - self._opened > pauses.upcoming:
                pauses.reset()
            elif error and (status := self._changed(StoreStatus(KUBE, connected=False, error=error))):
                yield status
            await asyncio.sleep(asked + pauses.next())

    async def _connection(self) -> AsyncGenerator[StoreEvent, None]:
        """Yields the events of one watch until it ends. Raises Expired, Gone or Unavailable."""
        if not self._mirror.position:
            yield self._mirror.replace(*await self._client.list_nodes(self._selector))
        async with aclosing(self._client.watch_nodes(self._mirror.position, self._selector)) as batches:
            async for batch in batches:
                self._opened = min(self._opened, time.monotonic())
                if status := self._changed(StoreStatus(KUBE, connected=True)):
                    yield status
                if event := self._mirror.fold(batch):
                    yield event

    def _changed(self, status: StoreStatus) -> StoreStatus | None:
        if status == self._status:
            return None
        self._status = status
        return status
