"""The store Kubernetes: Node objects are leases, written by their nodes, followed with one list and watch.

One MAC or address belongs to one Node: a second one is refused before its write, or withdrawn after it. Kubernetes
has no transaction over two Node objects. But its watch delivers writes in their order: with our own, it has
delivered all before. So of two nodes that write at once, at least the later one sees the other. What
`kubectl describe node` shows of a node whose lease is not as it should be are Kubernetes Events.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from flannelette.services.core.addresses import parse_address, parse_cidr
from flannelette.services.core.backend_types import BACKEND_TYPES, AllocOptions
from flannelette.services.core.conditions import ROWS, Condition, found
from flannelette.services.core.errors import InvalidInput, Misconfigured, NotImplementedYet, NotYet, Unavailable
from flannelette.services.core.family import FAMILIES, IPV4, Address, Family, Network
from flannelette.services.core.formats.text import visible
from flannelette.services.core.ipam import Reclaim, claim_of, held_by, not_held
from flannelette.services.core.leases.conflicts import Identity, identities_of, rank_of
from flannelette.services.core.leases.flannel_json import format_data, parse_data
from flannelette.services.core.leases.lease import BackendData, FamilyRequest, Lease, LeaseRequest, Progress, Subnet
from flannelette.services.core.leases.network_moves import pending_move
from flannelette.services.core.leases.table import (
    KUBE,
    Change,
    PublicIpOverride,
    PublicIpOverrides,
    Removed,
    StoreStatus,
    Upserted,
)
from flannelette.services.core.limits import LONGEST_NAME, LONGEST_REASON
from flannelette.services.core.network import FamilyNetwork, NetworkConfig
from flannelette.services.lease.progress import Notifier
from flannelette.services.lease.stores.kube.client import KubeClient
from flannelette.services.lease.stores.kube.values import (
    Access,
    Annotations,
    Busy,
    Deleted,
    Expired,
    Gone,
    KubeSettings,
    Node,
    NodeProblem,
    NotANode,
    Silent,
    Timing,
    WatchBatch,
    find_access,
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

log = get_logger()


def lease_of(node: Node, network: NetworkConfig, keys: Annotations, *, is_kept: bool = False) -> Lease | None:
    """The lease that a node holds, None if flannel does not run on it, or it has no podCIDR yet.

    Each family stands for itself: one that lacks podCIDR or address is left out, and peers reach the node in the
    other. (flanneld ignores the whole node, and what changes in it.) Raises InvalidInput for what cannot be read, and
    for a podCIDR outside the network, unless the node was published before the network was, or is kept: its lease
    was served with it already.
    """
    if node.annotation(keys.managed) != "true":
        return None
    cidrs, backend_type = pod_cidrs(node), node.annotation(keys.backend_type)
    if len(backend_type) > LONGEST_NAME:
        raise InvalidInput(f"annotation {keys.backend_type} of node {node.name} is longer than any backend's name")
    subnets = []
    for n in network.families:
        cidr, address = cidrs.get(n.family.version), _address(node, n.family, keys)
        if cidr is None or address is None:
            continue
        if not (is_kept or is_published_before(node, network, keys)):
            require_inside(node, cidr, n)
        subnets.append(Subnet(cidr, address, _data(node, keys.of(n.family).data, backend_type)))
    if not subnets:
        return None
    return Lease(node.name, node.name, tuple(subnets), backend_type, claim_order=node.claimed)


def is_published_before(node: Node, network: NetworkConfig, keys: Annotations) -> bool:
    """Whether the node was one of the overlay when the network may have been another (ADR 25)."""
    return node.annotation(keys.managed) == "true" and node.claimed < network.revision


def chosen_for(node: Node, keys: Annotations) -> PublicIpOverrides:
    """What the operator has chosen for a node, also where flannel does not run; the node finds out if it will do."""
    names = ((family.version, keys.of(family).chosen) for family in FAMILIES)
    return tuple(
        PublicIpOverride(version, text[:LONGEST_NAME], f"annotation {name}")
        for version, name in names
        if (text := node.annotation(name))
    )


def pod_cidrs(node: Node) -> dict[int, Network]:
    """The podCIDRs by IP version, none while none is assigned. Raises InvalidInput."""
    found: dict[int, Network] = {}
    for text in node.pod_cidrs:
        cidr = parse_cidr(text)
        if cidr is None or cidr.version in found:
            raise InvalidInput(
                f"node {node.name} has the podCIDRs {', '.join(node.pod_cidrs)}: one a family is needed, such as "
                "10.244.1.0/24"
            )
        found[cidr.version] = cidr
    return found


def require_inside(node: Node, cidr: Network, n: FamilyNetwork) -> None:
    """Raises InvalidInput for a podCIDR of the node outside the network."""
    if not n.fits(cidr):
        raise InvalidInput(
            f"the podCIDR {cidr} of node {node.name} lies outside the network {n.cidr}: correct the network "
            "configuration, or --cluster-cidr of kube-controller-manager"
        )


def _address(node: Node, family: Family, keys: Annotations) -> Address | None:
    key = keys.of(family).public
    text = node.annotation(key)
    return parse_public_address(text, family, f"annotation {key} of node {node.name}") if text else None


def parse_public_address(text: str, family: Family, where: str) -> Address | None:
    """The address, None for 0.0.0.0 and ::. Raises InvalidInput, naming `where`."""
    address = parse_address(text)
    if address is None or address.version != family.version:
        raise InvalidInput(f"{where} is {text!r}, which is not an {family} address: correct it")
    return None if address.is_unspecified else address


def _data(node: Node, key: str, backend_type: str) -> BackendData | None:
    text, where = node.annotation(key), f"annotation {key} of node {node.name}"
    if not text:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{where} is not valid JSON: {text:.60}") from None
    return parse_data(text, backend_type, where)


WITHDRAWN: Final = "false"
"""Not removed but set: watchers see that this is no accident."""
_NO_DATA: Final = "null"
"""What flannel writes for a backend that has none."""
_UNTYPED: Final = AllocOptions
"""Options of a node that names no backend, as nodes of alloc, udp and the clouds."""
CONDITION: Final = "NetworkUnavailable"
_REASON: Final = "FlannelIsUp"


_NO_POD_CIDR: Final = "lease.no-pod-cidr"


def require_pod_cidrs(
    node: Node, network: NetworkConfig, families: Container[Family], keys: Annotations, *, is_kept: bool = False
) -> None:
    """Raises NodeProblem, with what to do, unless the node has a podCIDR of each of these families of the network.

    That it lies outside is no reason for a node that has a lease with it: see `lease_of`.
    """
    try:
        cidrs = pod_cidrs(node)
        for n in network.families:
            cidr = cidrs.get(n.family.version)
            if cidr is None and n.family not in families:
                continue
            if cidr is None:
                which = f"{n.family} podCIDR" if cidrs else "podCIDR"
                raise NodeProblem(node.name, found(_NO_POD_CIDR, node=node.name, which=which))
            if not (is_kept or is_published_before(node, network, keys)):
                require_inside(node, cidr, n)
    except InvalidInput as error:
        raise NodeProblem(node.name, found("lease.refused", reason=error)) from None


def annotations_patch(node: Node, request: LeaseRequest, keys: Annotations) -> Mapping[str, Any] | None:
    """The strategic merge patch that publishes what the node asks for; None if it says so already.

    An address that the operator overwrites wins over the one asked for; those chosen for the node, the node has asked
    for already. Raises NodeProblem if such a one is no address.
    """
    wanted = {keys.managed: "true", keys.backend_type: request.backend_type}
    for family in FAMILIES:
        part = request.part(family)
        if part is not None and _is_published(family, request.backend_type, part):
            wanted[keys.of(family).data] = format_data(part.data) if part.data else _NO_DATA
            wanted[keys.of(family).public] = _public_address(node, family, part, keys)
    has = node.annotations or {}
    news = {key: text for key, text in wanted.items() if has.get(key) != text}
    return {"metadata": {"annotations": news}} if news else None


def withdrawal_patch(node: Node, keys: Annotations) -> Mapping[str, Any] | None:
    """The patch after which flannel does not run on this node; the rest stays, for when it does again."""
    is_ours = node.annotation(keys.managed) not in ("", WITHDRAWN)
    return {"metadata": {"annotations": {keys.managed: WITHDRAWN}}} if is_ours else None


def condition_patch(document: Mapping[str, Any], now: str) -> Mapping[str, Any] | None:
    """The patch that says that the network of this Node works; None if it says so already. `now` in RFC 3339."""
    conditions = document.get("status", {}).get("conditions") or []
    for condition in conditions:
        if condition.get("type") == CONDITION and (condition.get("status"), condition.get("reason")) == (
            "False",
            _REASON,
        ):
            return None
    condition = {
        "type": CONDITION,
        "status": "False",
        "reason": _REASON,
        "message": "Flannel is running on this node",
        "lastTransitionTime": now,
        "lastHeartbeatTime": now,
    }
    return {"status": {"conditions": [condition]}}


def _is_published(family: Family, backend_type: str, part: FamilyRequest) -> bool:
    backend = BACKEND_TYPES.get(backend_type, _UNTYPED)
    if backend.needs_data:
        return part.data is not None
    return family is IPV4 or backend.publishes_ipv6


def _public_address(node: Node, family: Family, part: FamilyRequest, keys: Annotations) -> str:
    key = keys.of(family).overwrite
    text = node.annotation(key)
    if not text:
        return str(part.public_address)
    try:
        parse_public_address(text, family, f"annotation {key} of node {node.name}")
    except InvalidInput as error:
        raise NodeProblem(node.name, found("lease.refused", reason=error)) from None
    return text


_PAUSE: Final = 0.1
"""Seconds between two writes: a wrong network concerns all nodes at once."""
_LONGEST: Final = 1000
"""Characters of a message."""
_AGENT: Final = "flannelette-lease"


class NodeEvents:
    """Writes the problems of nodes as Events, in a task of its own: nobody waits for it, and no failure ends it.

    A node has one Event for each condition, of the same name whichever process writes it; the reason of the Event is
    that of the condition's row. While the condition lasts, the count grows every `Timing.event_repeat` seconds, since
    the API server forgets an Event after an hour. `standing` returns the nodes and conditions that last and of which
    nobody calls `note` again.
    """

    def __init__(
        self, client: KubeClient, timing: Timing, standing: Callable[[], Iterable[tuple[str, Condition]]] = tuple
    ) -> None:
        self._client = client
        self._timing = timing
        self._standing = standing
        self._due: dict[tuple[str, str], str] = {}
        """Messages to write, by node and reason of the Event."""
        self._written: dict[tuple[str, str], tuple[str, float]] = {}
        """The last message of an Event, and when it was written."""
        self._counts: dict[str, int] = {}
        """Counts of the Events that this process has seen, by the Event's name."""
        self._noted = asyncio.Event()
        self._is_failing = False

    def note(self, node: str, condition: Condition) -> None:
        """Takes a condition that a node has now. Returns at once."""
        key, message = (node, ROWS[condition.code].event), visible(condition.problem)[:_LONGEST]
        before, at = self._written.get(key, ("", 0.0))
        pause = self._timing.event_repeat if message == before else self._timing.event_pause
        if before and time.monotonic() - at < pause:
            return
        self._due[key] = message
        self._noted.set()

    async def run(self) -> None:
        """Writes the Events until cancelled, and repeats those of problems that last."""
        repeat = self._timing.event_repeat
        while True:
            now = time.monotonic()
            self._written = {key: written for key, written in self._written.items() if now - written[1] < 2 * repeat}
            for each in self._standing():
                self.note(*each)
            while (left := now + repeat - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._noted.wait()
                if self._noted.is_set():
                    await self._write_all()

    async def _write_all(self) -> None:
        self._noted.clear()
        try:
            while self._due:
                key, message = next(iter(self._due.items()))
                await self._write(*key, message)
                self._written[key] = message, time.monotonic()
                if self._due.get(key) == message:
                    del self._due[key]
                await asyncio.sleep(_PAUSE)
        except (Unavailable, Gone) as error:
            if not self._is_failing:
                log.warning("Events of nodes cannot be written: not said again until one is", reason=str(error))
            self._is_failing = True
            await asyncio.sleep(self._timing.event_pause)
            self._noted.set()
        else:
            self._is_failing = False

    async def _write(self, node: str, reason: str, message: str) -> None:
        """One more of this Event, or the first. An Event of an earlier process is taken over with its count."""
        name = f"{node}.{_AGENT}.{reason.lower()}"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        news: dict[str, object] = {"message": message, "lastTimestamp": now}
        if name in self._counts:
            news["count"] = self._counts[name] + 1
        try:
            event = await self._client.patch_event(name, news)
        except Gone:
            event = await self._client.make_event(
                {
                    "metadata": {"name": name},
                    "involvedObject": {"kind": "Node", "name": node, "uid": node},  # as a kubelet writes it
                    "type": "Warning",
                    "reason": reason,
                    "source": {"component": _AGENT},
                    "reportingComponent": _AGENT,
                    "firstTimestamp": now,
                    "count": 1,
                    **news,
                }
            )
        count = event.get("count")
        self._counts[name] = count if isinstance(count, int) else 1


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
    return NodeProblem(node, found("lease.claimed-twice", reason=text))


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
            if has_waited or problem.condition.code != _NO_POD_CIDR:  # each new node has none for a moment
                self._events.note(problem.node, problem.condition)
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
            raise NodeProblem(node.name, found("lease.refused", reason=text))
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
            raise NodeProblem(node.name, found("lease.refused", reason=error)) from None

    def _note(self, leases: Mapping[str, Lease], refused: Mapping[str, str | Refusal]) -> None:
        for each in self._conditions(leases, refused):
            self._events.note(*each)

    def _standing(self) -> Iterator[tuple[str, Condition]]:
        now = self._mirror.snapshot()
        return self._conditions(now.leases, now.refused)

    def _conditions(
        self, leases: Mapping[str, Lease], refused: Mapping[str, str | Refusal]
    ) -> Iterator[tuple[str, Condition]]:
        """What is wrong with these leases and Nodes of the nodes that this process serves."""
        only = self._node_served
        for name, reason in refused.items():
            if only in ("", name):
                yield name, found("lease.refused", reason=reason)
        for name, lease in leases.items():
            if only in ("", name) and (move := pending_move(lease, self._network)):
                yield name, found("lease.change-pending", move=move)


def _network_of(path: Path) -> NetworkConfig:
    """The configuration, with the time of the file. Raises Misconfigured: changing it takes a restart."""
    try:
        network = read_network_file(path, leases_subnets=False)
    except InvalidInput as error:
        raise Misconfigured(f"{error}; start again when it is corrected") from None
    return replace(network, revision=int(path.stat().st_mtime))
