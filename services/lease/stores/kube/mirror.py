"""The nodes as the watch has seen them so far, and what each message of the watch means for leases. No IO."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

from services.core.choices import Chosen
from services.core.errors import InvalidInput
from services.core.lease import Lease
from services.core.network import NetworkConfig
from services.core.table import Change, Removed, Upserted
from services.lease.signals import Signals
from services.lease.store import Changed, Snapshot
from services.lease.stores.kube.annotations import Annotations
from services.lease.stores.kube.node_leases import chosen_for, lease_of
from services.lease.stores.kube.publishing import WITHDRAWN
from services.lease.stores.kube.records import Batch, Deleted, Node

Value = TypeVar("Value")


class Mirror:
    """Follows nodes, by value: what changes no lease is no news.

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
        self._choices: dict[str, Chosen] = {}
        self._released: set[str] = set()
        """Nodes whose lease was given back, since somebody emptied this set."""
        self._signals = Signals()

    def replace(self, nodes: Iterable[Node], position: str) -> Snapshot:
        """Takes a complete listing."""
        by_name = {node.name: node for node in nodes}
        for name in self._nodes.keys() - by_name.keys():
            self._take(Deleted(name))
        for node in by_name.values():
            self._take(node)
        self.position = position
        self._signals.wake(None)
        return self.snapshot()

    def fold(self, batch: Batch) -> Changed | None:
        """Takes what happened; None: nothing that anybody has to know."""
        self.position = batch.position
        if all(event == self._nodes.get(event.name) for event in batch.events):
            return None  # nearly every batch: what kubelets write all the time is none of what we take
        refused, choices = dict(self._refused), dict(self._choices)
        self._released.clear()
        changes = [change for event in batch.events if (change := self._take(event))]
        self._signals.wake({event.name for event in batch.events})
        event = Changed(
            tuple(changes),
            refused={name: reason for name, reason in self._refused.items() if refused.get(name) != reason},
            cleared=frozenset(refused.keys() - self._refused.keys()),
            released=frozenset(self._released),
            choices=_copy(self._choices) if self._choices != choices else None,
        )
        return event if event != Changed() else None

    def snapshot(self) -> Snapshot:
        """Everything as it is now."""
        return Snapshot(
            _copy(self._leases), self._network, refused=_copy(self._refused), choices=_copy(self._choices)
        )

    @property
    def leases(self) -> Mapping[str, Lease]:
        """By node, as they are now."""
        return self._leases

    async def lease_like(self, lease: Lease) -> None:
        """Returns when the watch has told of this lease, of whatever age."""
        while (held := self._leases.get(lease.name)) is None or held.subnets != lease.subnets:
            await self._signals.next(lease.name)

    async def pod_cidr_of(self, name: str) -> None:
        """Returns when the node of this name has a podCIDR."""
        while not ((node := self._nodes.get(name)) and node.pod_cidrs):
            await self._signals.next(name)

    def serves(self, name: str) -> bool:
        """Whether this node has a lease that was told."""
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
            self._refused[event.name] = str(error)
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
