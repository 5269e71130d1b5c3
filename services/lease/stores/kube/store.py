"""The store Kubernetes: Node objects are leases, written by their nodes, followed with one list and watch.

One MAC or address belongs to one Node: a second one is refused before its write, or withdrawn after it. Kubernetes
has no transaction over two Node objects. But its watch delivers writes in their order: with our own, it has
delivered all before. So of two nodes that write at once, at least the later one sees the other.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from flannelette.services.core.errors import InvalidInput, Misconfigured, NotImplementedYet, NotYet, Unavailable
from flannelette.services.core.family import FAMILIES, Network
from flannelette.services.core.ipam.allocation import held_by
from flannelette.services.core.ipam.claims import claim_of, not_held
from flannelette.services.core.ipam.reservations import Reclaim
from flannelette.services.core.leases.conflicts import Identity, identities_of, rank_of
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.leases.network_moves import pending_move
from flannelette.services.core.leases.progress import Progress
from flannelette.services.core.leases.table import KUBE, Change, PublicIpOverrides, Removed, StoreStatus, Upserted
from flannelette.services.core.limits import LONGEST_REASON
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.progress.notifier import Notifier
from flannelette.services.lease.stores.kube.client import KubeClient
from flannelette.services.lease.stores.kube.events import NodeEvents
from flannelette.services.lease.stores.kube.node_leases import (
    WITHDRAWN,
    annotations_patch,
    chosen_for,
    condition_patch,
    lease_of,
    require_pod_cidrs,
    withdrawal_patch,
)
from flannelette.services.lease.stores.kube.settings import Access, Annotations, KubeSettings, find_access
from flannelette.services.lease.stores.kube.values import (
    Busy,
    Deleted,
    Expired,
    Gone,
    Node,
    NodeProblem,
    NotANode,
    Problem,
    Silent,
    Timing,
    WatchBatch,
    read_node,
)
from flannelette.services.lease.stores.store import (
    Changed,
    Reclaimed,
    Refusal,
    Snapshot,
    StoreEvent,
    read_network_file,
)
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.telemetry.logs import get_logger

Value = TypeVar("Value")


class Mirror:
    """The nodes and their leases as the watch has delivered them. What changes no lease makes no event.

    A node whose annotations do not parse is refused and keeps the lease that it had, also through a new listing,
    unless its podCIDRs are others now: then it is another node of the same name.
    """

    def __init__(self, network: NetworkConfig, keys: Annotations) -> None:
        self.position = ""
        """Position up to which everything is in; empty: nothing was listed yet."""
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


log = get_logger()


_TOLD_SECONDS: Final = 3.0
"""The longest time that the watch takes to deliver our own write."""


class ExclusiveClaims:
    """Refuses what another living node publishes, for one store."""

    def __init__(self, client: KubeClient, mirror: Mirror, keys: Annotations, network: NetworkConfig) -> None:
        self._client, self._mirror, self._keys, self._network = client, mirror, keys, network

    async def require_none(self, node: Node, patch: Mapping[str, Any] | None) -> None:
        """Raises NodeProblem if a node that is alive has what this one would publish by the patch, and was first.

        What a node publishes that is not alive is withdrawn: else it would go first for its age.
        """
        news = patch["metadata"]["annotations"] if patch else {}
        with suppress(InvalidInput):
            wanted = lease_of(
                replace(node, annotations={**(node.annotations or {}), **news}), self._network, self._keys
            )
            mine = None if patch else self._mirror.leases.get(node.name)
            for rival, identity in self._rivals(wanted) if wanted else ():
                if mine is not None and rank_of(mine) < rank_of(rival):
                    continue
                document = await self._client.read_node(rival.name)
                if _is_alive(document):
                    raise _refused(rival, identity, node.name)
                if gone := withdrawal_patch(
                    replace(node, name=rival.name, annotations=_annotations(document)), self._keys
                ):
                    log.warning("a lease is withdrawn: its node is not alive", node=rival.name, rival=node.name)
                    await self._client.patch_node(rival.name, gone)

    async def require_none_since(self, node: Node, lease: Lease) -> None:
        """The same after the write: who did not write in an earlier second than the other takes it back."""
        if not self._mirror.position:
            return  # nobody watches
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_SECONDS):
                await self._mirror.lease_like(lease)
        mine = self._mirror.leases.get(node.name)
        for rival, identity in self._rivals(lease):
            if mine is None or not mine.claim_order < rival.claim_order:
                if gone := withdrawal_patch(node, self._keys):
                    await self._client.patch_node(node.name, gone)
                raise _refused(rival, identity, node.name)

    def _rivals(self, lease: Lease) -> Iterator[tuple[Lease, Identity]]:
        """Other nodes' leases that have something of this one, with what that is. Looks at all."""
        wanted = set(identities_of(lease))
        for other in list(self._mirror.leases.values()):
            if other.name != lease.name and (shared := wanted.intersection(identities_of(other))):
                yield other, min(shared, key=repr)


def _refused(rival: Lease, identity: Identity, node: str) -> NodeProblem:
    text = held_by(claim_of(rival), identity, node, f"delete the Node {rival.name}, if it is gone")
    return NodeProblem(node, Problem.CLAIMED_TWICE, text)


def _is_alive(document: Mapping[str, Any]) -> bool:
    """Kubernetes says `Unknown` of a node whose kubelet has not reported for some 40 s."""
    conditions = document.get("status", {}).get("conditions") or []
    return not any(each.get("type") == "Ready" and each.get("status") == "Unknown" for each in conditions)


def _annotations(document: Mapping[str, Any]) -> Mapping[str, str]:
    return document.get("metadata", {}).get("annotations") or {}


_NOT_OURS: Final = (
    "Kubernetes hands out the subnets: to choose one, set spec.podCIDR of the Node before it is assigned; to take "
    "one back, delete the Node"
)

_LISTINGS: Final = 3


class KubeStore:
    """A Store (services/lease/stores/store.py) in the Node objects of a Kubernetes cluster.

    A lease is called as its node, which alone can hold it: whose a lease is needs no decision here. It never runs
    out, and changes when the node's podCIDR or annotations do. Who gets which subnet is Kubernetes' business.
    Construction opens nothing; it raises Misconfigured for a network file or credentials that cannot be used. `node`
    is the node that the process serves, empty if central.
    """

    kind = KUBE

    def __init__(
        self, settings: KubeSettings, *, node: str = "", timing: Timing | None = None, access: Access | None = None
    ) -> None:
        self._settings = settings
        self._node_served = node
        self._keys = settings.annotations
        self._timing = timing or Timing()
        self._network = _network_of(settings.network_file)
        agent = f"flannelette-lease/{node or 'central'}"
        self._client = KubeClient(access or find_access(settings), self._timing, self._keys, agent)
        self._mirror = Mirror(self._network, self._keys)
        self._exclusive_claims = ExclusiveClaims(self._client, self._mirror, self._keys, self._network)
        # With alloc there are no peers, so that a node need not see the others.
        alone = bool(node) and self._network.backend_type == "alloc"
        self._selector = f"metadata.name={node}" if alone else ""
        self._events = NodeEvents(self._client, self._timing, self._standing)
        self._told: set[str] = set()
        """Nodes that know that they have no podCIDR."""
        self._up: set[str] = set()
        """Nodes whose condition says that their network works."""

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store; the order of events is in Watcher."""
        self._mirror.position = ""
        watcher = Watcher(self._client, self._mirror, self._timing, self._selector)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                if isinstance(event, Snapshot):
                    self._up &= event.leases.keys()
                    self._note(event.leases, event.refused)
                elif isinstance(event, Changed):
                    self._up -= {change.name for change in event.changes if isinstance(change, Removed)}
                    upserts = (change.lease for change in event.changes if isinstance(change, Upserted))
                    self._note({lease.name: lease for lease in upserts}, event.refused)
                yield event

    async def write_events(self) -> None:
        """Keeps Kubernetes Events of the nodes that this process serves, for ever."""
        await self._events.run()

    async def relist(self) -> Snapshot:
        """See Store. A consistent read, not from the API server's cache."""
        for _ in range(_LISTINGS):
            with suppress(Expired):  # between two pages
                return Mirror(self._network, self._keys).replace(*await self._client.list_nodes(self._selector))
        raise Unavailable("the nodes cannot be listed: the API server forgets a listing before it is complete")

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store: publishes what the node asks for in its annotations.

        Raises NotYet while the node has no podCIDR: the first time at once, so that the reason is known, then after
        having waited for it, so that a caller who asks again gets the lease as soon as there can be one.
        """
        has_waited = request.node in self._told
        try:
            return await self._acquire(request)
        except NodeProblem as problem:
            if has_waited or problem.problem is not Problem.NO_POD_CIDR:  # each new node has none for a moment
                self._events.note(problem)
            raise

    async def _acquire(self, request: LeaseRequest) -> Lease:
        node = await self._node(request.node)
        if not node.pod_cidrs and node.name in self._told:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timing.pod_cidr):
                    await self._mirror.pod_cidr_of(node.name)
                node = await self._node(request.node)
        self._told.add(node.name)
        asked = [family for family in FAMILIES if request.part(family)]
        require_pod_cidrs(node, self._network, asked, self._keys, is_kept=self._mirror.serves(node.name))
        self._told.discard(node.name)
        patch = annotations_patch(node, request, self._keys)
        await self._exclusive_claims.require_none(node, patch)
        if patch:
            node = self._read(await self._client.patch_node(node.name, patch))
            log.info("annotations written", node=node.name, annotations=patch["metadata"]["annotations"])
        lease = self._lease(node)
        if lease is None:
            text = f"something else changes the annotations of node {node.name}: see {self._keys.prefix}*"
            raise NodeProblem(node.name, Problem.LEASE_REFUSED, text)
        if patch:
            await self._exclusive_claims.require_none_since(node, lease)
        return lease

    async def renew(self, node: str, name: str, machine: str = "") -> Lease:
        """See Store. There is nothing to renew; this says that the lease is still there.

        Nodes have unique names here, so that `machine` says nothing more.
        """
        lease = None
        if name == node:
            with suppress(NotYet):
                lease = self._lease(await self._node(node))
        if lease is None:
            raise not_held(node, name)
        return lease

    async def release(self, node: str, name: str) -> None:
        """See Store. The node stays, with its podCIDR, and its peers forget it."""
        if name != node:
            return
        with suppress(NotYet):  # there is no such node any more
            if patch := withdrawal_patch(await self._node(node), self._keys):
                await self._client.patch_node(node, patch)
                log.info("lease released", node=node)

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """See Store."""
        raise NotImplementedYet(_NOT_OURS)

    async def unreserve(self, name: str) -> None:
        """See Store."""
        raise NotImplementedYet(_NOT_OURS)

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """See Store."""
        raise NotImplementedYet(_NOT_OURS)

    async def report(self, progress: Progress) -> float:
        """See Store. A node's first report sets its condition: its network works."""
        name = progress.node
        if not (self._settings.sets_condition and progress.cursor) or name in self._up:
            return 0.0
        try:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            if patch := condition_patch(await self._client.read_node(name), now):
                await self._client.patch_node(name, patch)
                log.info("the condition NetworkUnavailable=False is set", node=name)
        except NotYet as error:
            raise Unavailable(str(error)) from None
        self._up.add(name)
        return 0.0

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store. A Node object is not ours to delete."""
        raise NotImplementedYet(f"{key} is a Node of Kubernetes, not ours to delete: correct its annotations instead")

    async def close(self) -> None:
        """See Store."""
        await self._client.close()

    async def _node(self, name: str) -> Node:
        return self._read(await self._client.read_node(name))

    def _read(self, document: object) -> Node:
        try:
            return read_node(document, self._keys)
        except NotANode as error:
            raise Unavailable(f"the Kubernetes API sent what is no Node ({error})") from None

    def _lease(self, node: Node) -> Lease | None:
        try:
            return lease_of(node, self._network, self._keys, is_kept=True)
        except InvalidInput as error:
            raise NodeProblem(node.name, Problem.LEASE_REFUSED, str(error)) from None

    def _note(self, leases: Mapping[str, Lease], refused: Mapping[str, str | Refusal]) -> None:
        for found in self._problems(leases, refused):
            self._events.note(found)

    def _standing(self) -> Iterator[NodeProblem]:
        now = self._mirror.snapshot()
        return self._problems(now.leases, now.refused)

    def _problems(self, leases: Mapping[str, Lease], refused: Mapping[str, str | Refusal]) -> Iterator[NodeProblem]:
        """What is wrong with these leases and Nodes of the nodes that this process serves."""
        only = self._node_served
        for name, reason in refused.items():
            if only in ("", name):
                yield NodeProblem(name, Problem.LEASE_REFUSED, str(reason))
        for name, lease in leases.items():
            if only in ("", name) and (move := pending_move(lease, self._network)):
                yield NodeProblem(name, Problem.CHANGE_PENDING, str(move))


def _network_of(path: Path) -> NetworkConfig:
    """The configuration, with the time of the file. Raises Misconfigured: changing it takes a restart."""
    try:
        network = read_network_file(path, leases_subnets=False)
    except InvalidInput as error:
        raise Misconfigured(f"{error}; start again when it is corrected") from None
    return replace(network, revision=int(path.stat().st_mtime))
