"""Probes the peers in turn, at a low rate, keeps what the probes have shown, and says what it means, as findings.

A turn of a peer is a small and a large packet on each of its paths. A reply that takes longer than a second counts as
lost. If a peer answers in the underlay and not through the overlay, the tunnel between the two nodes is broken. If
it answers neither, the peer or the network to it is down. A probe cannot tell which node drops the packets.
"""

import asyncio
import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from flannelette.services.core.conditions import Condition, PeerName, found
from flannelette.services.core.cure import Command, Cure
from flannelette.services.core.family import Address, Family
from flannelette.services.core.limits import SMALLEST_MTU
from flannelette.services.dataplane.events import PROBE_SECONDS, PROBES_LOST, NodeEventKind, NodeJournal
from flannelette.services.dataplane.kernel.programmer import PeerProgrammer
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.netlink.object_text import mtu_of, with_mtu
from flannelette.services.dataplane.peers import Peer, PeerContext
from flannelette.services.dataplane.probes.record import (
    MISSES,
    PROOFS,
    Answering,
    ChecksumRecord,
    LargeProbe,
    Layer,
    Offload,
    ProbedPath,
    Record,
    devices_of,
    paths_of,
    route_to,
    signs_of_life,
)
from flannelette.services.dataplane.probes.sockets import (
    PORT,
    TIMEOUT_SECONDS,
    Datagrams,
    EchoSockets,
    Reply,
    obstacle_of,
    round_trip_of,
)
from flannelette.services.runtime.events import MOST_NAMED, Event, Subject
from flannelette.services.runtime.os.ethtool import checksum_offload

K = TypeVar("K")

REST_SECONDS: Final = 10.0
"""Seconds between two turns of a peer that answers."""
DOUBT_SECONDS: Final = 1.0
"""Seconds between two turns of a peer whose last probe was not answered."""


class Schedule(Generic[K]):
    """Keys and when each is due. Times are seconds of one clock."""

    def __init__(self, turns_per_second: float) -> None:
        self._pause = 1 / turns_per_second
        self._queue: list[tuple[float, int, K]] = []
        self._doubts: list[tuple[float, int, K]] = []
        self._keys: dict[K, int] = {}
        """The number of the entry that counts, by key; entries with other numbers are former ones."""
        self._numbers = 0
        self._free_at = 0.0
        """When the rate allows the next turn."""
        self._was_doubt = False

    def keep(self, keys: Iterable[K], now: float) -> None:
        """Has these keys and no others; new ones are due at once, in their order."""
        wanted = dict.fromkeys(keys)
        for key in self._keys.keys() - wanted.keys():
            del self._keys[key]
        for key in wanted:
            if key not in self._keys:
                self._push(self._queue, now, key)

    def next_at(self) -> float | None:
        """When the next turn is; None: there is no key."""
        first = [queue[0][0] for queue in (self._queue, self._doubts) if self._trim(queue)]
        return max(min(first), self._free_at) if first else None

    def take(self, now: float) -> K | None:
        """The key whose turn it is now, which then waits for its next one; None: none is due."""
        if now < self._free_at:
            return None
        due = [queue for queue in (self._queue, self._doubts) if self._trim(queue) and queue[0][0] <= now]
        if not due:
            return None
        queue = due[-1 if not self._was_doubt else 0]
        self._was_doubt = queue is self._doubts
        key = heapq.heappop(queue)[2]
        self._free_at = now + self._pause
        self._push(self._queue, now + max(REST_SECONDS, len(self._keys) * self._pause), key)
        return key

    def doubt(self, key: K, now: float) -> None:
        """Gives a key its next turn sooner."""
        if key in self._keys:
            self._push(self._doubts, now + DOUBT_SECONDS, key)

    def _push(self, queue: list[tuple[float, int, K]], when: float, key: K) -> None:
        self._numbers += 1
        self._keys[key] = self._numbers
        heapq.heappush(queue, (when, self._numbers, key))

    def _trim(self, queue: list[tuple[float, int, K]]) -> bool:
        """Drops former entries from the front. True: there is one that counts."""
        while queue and self._keys.get(queue[0][2]) != queue[0][1]:
            heapq.heappop(queue)
        return bool(queue)


_PACKETS: Final = 4
"""Packets of one turn, where a peer has one address family."""
_HEARD_SECONDS: Final = 5.0
"""Shortest time between two looks at what routers have told."""
_MOST_HEARD: Final = 1_000
"""Addresses of which that is kept."""
_LOOK_SECONDS: Final = 1.0
"""How often new peers are looked for."""


class ControllerView(Protocol):
    """The controller, as far as the prober looks at it and tells it what was found."""

    iterations: int
    journal: NodeJournal
    detours: Mapping[str, Condition]

    def note_path(self, lease: str, family: Family, largest: int, *, is_final: bool) -> None: ...  # noqa: D102

    @property
    def programmer(self) -> PeerProgrammer: ...  # noqa: D102 - see Controller, also below
    @property
    def is_paused(self) -> bool: ...  # noqa: D102


@dataclass(slots=True)
class _Sent:
    """A probe that is on its way."""

    at: float
    """When it was sent, by the loop's clock."""
    time: float
    """When it was sent, in Unix time."""
    lease: str
    path: ProbedPath
    record: Record
    size: int
    """0: a small one."""
    kind: LargeProbe
    """What is sent as a large probe."""
    sequence: int


class Prober:
    """Probes the peers in turn, and records whether they answer."""

    def __init__(self, dataplane: ControllerView, rate: float, *, keeps_offload_on: bool = False) -> None:
        """`rate`: packets per second; 0: none are sent. `keeps_offload_on`: checksum offload is turned on by us."""
        self._keeps_offload_on = keeps_offload_on
        self.obstacle = "" if rate else "--probe-rate is 0"
        """Why no probes are sent; empty: they are."""
        self.records: dict[str, dict[ProbedPath, Record]] = {}
        """Records of each path, by lease name, of the peers that have had a turn."""
        self.answering = Counter[Answering]()
        """Number of peers by whether they answer through the overlay."""
        self.silent: set[str] = set()
        """Leases of the peers that do not."""
        self.path_classes = Counter[tuple[str, ...]]()
        """Number of paths through the overlay by family, MTU and the largest packet that passes, as text."""
        self.narrow: set[str] = set()
        """Leases of the peers that answer small packets only."""
        self.leaking: set[str] = set()
        """Leases of the peers to and from which some packets are lost."""
        self.mute: set[str] = set()
        """Leases of the peers that answer datagrams through the overlay, and no pings."""
        self.miscalculated: set[str] = set()
        """Leases of the peers to which no packet passes of which the checksum is left to the device."""
        self._dataplane = dataplane
        self._schedule = Schedule[str](rate / _PACKETS) if rate else None
        self._standing: dict[str, Answering] = {}
        self._classes: dict[str, list[tuple[str, ...]]] = {}
        """The classes of the paths to each peer."""
        self._told_silent: set[str] = set()
        """Leases of which the last event says that the peer does not answer."""
        self._changed: set[str] = set()
        """Leases of peers of which a record has changed in kind since `_tell`."""
        self._news = asyncio.Event()
        self._on_their_way: dict[int, _Sent] = {}
        self._in_order: deque[_Sent] = deque()
        self._sequences = count()
        self._seen = -1
        self._datagrams = Datagrams(self._take)
        self._heard: dict[Address, int] = {}
        """What routers have told since the last look: bytes that the way to an address carries."""
        self._heard_at = 0.0

    def findings(self) -> list[Condition]:
        """What unanswered probes say about the network."""
        context, peers = self._dataplane.programmer.context, self._dataplane.programmer.peers
        if context is None:
            return []
        troubled = {
            (lease, self.node_of(lease)): self.records[lease]
            for lease in sorted(self.silent | self.narrow | self.leaking)
        }
        some_answer = bool(self.answering[Answering.ANSWERS])
        overlays = [context.overlay_of(peers[lease].lease) for lease, _ in troubled if lease in peers]
        carriers = dict.fromkeys(each.backend.carrier for each in overlays if each and each.backend.carrier)
        narrowed = partial(_narrowed, peers, context)
        narrow = defaultdict[tuple[int, int], list[PeerName]](list)
        for name, paths in troubled.items():
            untold = {path: each for path, each in paths.items() if not self.route_mtu(name[0], path)}
            if len(untold) < len(paths):  # who sends more is told so by the kernel, and loses nothing
                troubled[name] = untold
                below = [
                    (p.mtu, r.limit) for p, r in paths.items() if p.layer is Layer.UNDERLAY and not r.is_searching
                ]
                for mtu, limit in {(mtu, limit) for mtu, limit in below if limit}:
                    narrow[mtu, limit].append(name)
        detours, carrier = self._dataplane.detours, " or ".join(carriers)
        found = list(probe_findings(troubled, carrier, narrowed, detours, some_answer=some_answer))
        device = context.links.underlay.name
        found += (_narrow_underlay(tuple(names), device, *sizes) for sizes, names in narrow.items())
        if self.mute:
            found.append(mute_finding(tuple((lease, self.node_of(lease)) for lease in sorted(self.mute))))
        if self.miscalculated:
            names = tuple((lease, self.node_of(lease)) for lease in sorted(self.miscalculated))
            left_by = {name for lease, _ in names if lease in peers for name in devices_of(peers[lease], context)}
            offloading = {name for name in left_by or {device} if checksum_offload(name) is not False}
            if offloading:  # else somebody has turned it off since the last turns
                found.append(checksum_finding(names, offloading, device, is_kept_on=self._keeps_offload_on))
        return found

    def route_mtu(self, lease: str, path: ProbedPath) -> int:
        """Bytes that the route to a peer says that its path carries, where larger packets do not pass; 0: it says
        nothing, or too much.
        """
        record, peer = self.records.get(lease, {}).get(path), self._dataplane.programmer.peers.get(lease)
        if record is None or peer is None or path.layer is not Layer.OVERLAY or not record.limit:
            return 0
        route, reconciler = route_to(peer, path.family), self._dataplane.programmer.reconciler
        if route is None or route not in reconciler.programmed:
            return 0
        said = reconciler.mtus.get(route.key) or mtu_of(route)
        return said if said <= record.limit else 0

    def is_away(self, lease: str) -> bool:
        """Whether the host of a peer answers nothing, in any of its addresses that were asked."""
        states = [record.state for record in self.records.get(lease, {}).values()]
        return bool(states) and all(state is Answering.SILENT for state in states)

    def take_asked(self, lease: str, path: ProbedPath, size: int, round_trip: float | None) -> None:
        """Takes what somebody has asked a peer between its turns, MISSES times if there was no answer."""
        record = self.records.setdefault(lease, {}).setdefault(path, _record_of(path))
        for _ in range(1 if round_trip is not None else MISSES):
            self._note(_Sent(0.0, 0.0, lease, path, record, size, LargeProbe.ECHO, 0), round_trip)

    def node_of(self, lease: str) -> str:
        """The node of a peer, or the name of its lease where the node is not known."""
        peer = self._dataplane.programmer.peers.get(lease)
        return peer.lease.node or lease if peer else lease

    async def run(self) -> None:
        """Probes until cancelled, or until it is known that no probe can be sent."""
        schedule = self._schedule
        if schedule is None:
            return
        try:
            sockets = EchoSockets(self._take, self._hear)
        except OSError as error:
            self.obstacle = obstacle_of(error)
            return
        loop = asyncio.get_running_loop()
        try:
            while True:
                now = loop.time()
                self._look_for_peers(schedule, now)
                self._give_up(now)
                self._doubt_sizes(schedule, now)
                self._tell()
                while not self._dataplane.is_paused and (lease := schedule.take(now)) is not None:
                    self._send(sockets, lease, now)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._next_at(schedule, now)):
                        await self._news.wait()
                self._news.clear()
        finally:
            sockets.close()
            self._datagrams.close()

    def _next_at(self, schedule: Schedule[str], now: float) -> float:
        times = [now + _LOOK_SECONDS]
        if (turn := schedule.next_at()) is not None:
            times.append(turn)
        if self._in_order:
            times.append(self._in_order[0].at + TIMEOUT_SECONDS)
        return min(times)

    def _look_for_peers(self, schedule: Schedule[str], now: float) -> None:
        """Updates the peers after an iteration of the control loop: takes new ones in, and drops those that left."""
        if self._seen == self._dataplane.iterations:
            return
        self._seen = self._dataplane.iterations
        peers = self._dataplane.programmer.peers
        schedule.keep(peers, now)
        for lease in self.records.keys() - peers.keys():
            del self.records[lease]
            self._changed.add(lease)

    def _send(self, sockets: EchoSockets, lease: str, now: float) -> None:
        programmer = self._dataplane.programmer
        peer, context = programmer.peers.get(lease), programmer.context
        if peer is None or context is None:
            return
        known = self.records.get(lease, {})
        paths = (*paths_of(peer, context, programmer.reconciler.mtus), *signs_of_life(peer, context))
        records = {path: known.get(path) or _record_of(path) for path in paths}
        if records.keys() != known.keys():
            self._changed.add(lease)
        self.records[lease] = records
        for path, record in records.items():
            for size in (0, record.next_size):
                sequence = next(self._sequences) & 0xFFFF
                kind = record.next_large if size else LargeProbe.ECHO
                sent = _Sent(now, time.time(), lease, path, record, size, kind, sequence)
                try:
                    if kind is LargeProbe.ECHO:
                        sockets.send(path.address, sequence, size)
                    else:
                        is_offloaded = kind is LargeProbe.OFFLOADED
                        self._datagrams.send(path.address, sequence, size, is_offloaded=is_offloaded)
                except OSError:  # no route, or a packet that is larger than the device's MTU: lost
                    sent.at = now - TIMEOUT_SECONDS
                    self._in_order.appendleft(sent)
                else:
                    self._in_order.append(sent)
                self._on_their_way[sequence] = sent

    def _take(self, reply: Reply, arrived: float) -> None:
        sent = self._on_their_way.pop(reply.sequence, None)
        if sent is not None:
            elapsed = asyncio.get_running_loop().time() - sent.at
            self._note(sent, round_trip_of(sent.time, arrived, elapsed))

    def _hear(self, address: Address, mtu: int) -> None:
        if len(self._heard) < _MOST_HEARD:
            self._heard[address] = mtu

    def _doubt_sizes(self, schedule: Schedule[str], now: float) -> None:
        """Asks the peers again of which a router says that less passes to them than is known here.

        Anybody can tell that, so it costs a few probes at most, and a look at the peers each few seconds.
        """
        if not self._heard or now < self._heard_at + _HEARD_SECONDS:
            return
        heard, self._heard, self._heard_at = self._heard, {}, now
        for lease, records in self.records.items():
            below = [
                (path.address, each.sizes.largest) for path, each in records.items() if path.layer is Layer.UNDERLAY
            ]
            if any(heard.get(address, largest) < largest for address, largest in below):
                news = [record.hear() for record in records.values()]
                if any(news):
                    schedule.doubt(lease, now)

    def _give_up(self, now: float) -> None:
        while self._in_order and self._in_order[0].at + TIMEOUT_SECONDS <= now:
            sent = self._in_order.popleft()
            if self._on_their_way.get(sent.sequence) is sent:
                del self._on_their_way[sent.sequence]
                self._datagrams.forget(sent.sequence)
                self._note(sent, None)

    def _note(self, sent: _Sent, round_trip: float | None) -> None:
        record = sent.record
        before, path = record.standing, sent.path
        record.note(sent.size, round_trip, time.time(), sent.kind)
        if record.standing != before:
            self._changed.add(sent.lease)
            self._news.set()
            if path.layer is Layer.OVERLAY and (limit := record.limit) is not None:
                self._dataplane.note_path(sent.lease, path.family, limit, is_final=not record.is_searching)
        if record.is_in_doubt and self._schedule is not None:
            self._schedule.doubt(sent.lease, asyncio.get_running_loop().time())
        layer = sent.path.layer
        if round_trip is None and sent.kind is LargeProbe.ECHO:
            PROBES_LOST.labels(layer).inc()
        elif round_trip is not None and not sent.size:
            PROBE_SECONDS.labels(layer).observe(round_trip)

    def _tell(self) -> None:
        """Counts the peers that have begun or ceased to answer, with an event for those that did either."""
        changed, self._changed = self._changed, set()
        lost, back = list[str](), list[str]()
        for lease in changed:
            before = self._standing.pop(lease, None)
            if before is not None:
                self.answering[before] -= 1
            self.silent.discard(lease)
            self.narrow.discard(lease)
            self.leaking.discard(lease)
            self.mute.discard(lease)
            self.miscalculated.discard(lease)
            paths = self.records.get(lease, {}).items()
            overlay = [record for path, record in paths if path.layer is Layer.OVERLAY]
            self.path_classes -= Counter(self._classes.pop(lease, ()))  # leaves no class without a path
            if overlay:
                self._classes[lease] = [_class_of(*each) for each in paths if each[0].layer is Layer.OVERLAY]
                self.path_classes += Counter(self._classes[lease])
            if not overlay:
                self._told_silent.discard(lease)
                continue
            now = self._standing[lease] = standing(overlay)
            self.answering[now] += 1
            if now is Answering.SILENT:
                self.silent.add(lease)
                if lease not in self._told_silent:
                    lost.append(lease)
            elif now is Answering.ANSWERS and lease in self._told_silent:
                back.append(lease)
            if now is Answering.ANSWERS and any(record.is_mute for record in overlay):
                self.mute.add(lease)
            if any(record.is_leaking for record in overlay):
                self.leaking.add(lease)
            if any(record.is_narrow for record in overlay):
                self.narrow.add(lease)
            if any(record.offload is Offload.BROKEN for record in overlay):
                self.miscalculated.add(lease)
        self._told_silent |= {*lost}
        self._told_silent -= {*back}
        self._note_event(lost, "does not answer through the overlay", "do not answer through the overlay")
        self._note_event(back, "answers through the overlay again", "answer through the overlay again")

    def _note_event(self, leases: list[str], one: str, many: str) -> None:
        if not leases:
            return
        named = tuple(Subject(lease, self.node_of(lease)) for lease in sorted(leases)[:MOST_NAMED])
        who = ", ".join(each.of for each in named) + (", ..." if len(leases) > len(named) else "")
        what = f"{who} {one if len(leases) == 1 else many}"
        event = Event(NodeEventKind.PEER_ANSWERS, what, "probes", subjects=named, subject_count=len(leases))
        self._dataplane.journal.note(event)


def _narrowed(peers: Mapping[str, Peer], context: PeerContext, lease: str, family: Family, mtu: int) -> str:
    """The command that gives our route to a peer an MTU, of which the kernel tells pods; empty: there is none.

    Of less than 1280 bytes the kernel tells nobody in IPv6.
    """
    route = route_to(peers[lease], family) if lease in peers and mtu >= SMALLEST_MTU[family.version] else None
    return command("replace", with_mtu(route, mtu), context.names()) if route is not None else ""


def _class_of(path: ProbedPath, record: Record) -> tuple[str, str, str]:
    """Family, MTU, and the largest packet that passes."""
    limit = None if record.is_searching else record.limit
    return str(path.family), str(path.mtu), "unknown" if limit is None else str(limit or path.mtu)


def _record_of(path: ProbedPath) -> Record:
    return Record(path.must_answer, path.mtu, ChecksumRecord() if path.layer is Layer.OVERLAY else None)


def standing(overlay: Iterable[Record]) -> Answering:
    """Whether a peer answers through the overlay: in every address family of which that can be known."""
    states = [record.state for record in overlay]
    return next((s for s in (Answering.SILENT, Answering.ANSWERS) if s in states), Answering.UNKNOWN)


Paths: TypeAlias = Mapping[ProbedPath, Record]

_MOST_COMMANDS: Final = 5
"""Largest number of commands in one cure, one for each peer; of more peers the cause is in the network."""
_MANY: Final = 2
"""Least number of peers of which it says something about this node that none answers."""


def probe_findings(
    peers: Mapping[PeerName, Paths],
    carrier: str,
    narrowed: Callable[[str, Family, int], str],
    detours: Mapping[str, Condition],
    *,
    some_answer: bool,
) -> Iterator[Condition]:
    """The findings about peers that do not answer as they should, `some_answer`: others do.

    `carrier` is what a firewall between the nodes has to let through; `narrowed` returns the command that gives the
    route to a lease, in a family, an MTU. `detours`, by lease, is what is told of a peer that is silent and to which
    packets leave by another interface than the underlay's.
    """
    tunnels, nodes, leaking = list[PeerName](), list[PeerName](), dict[PeerName, str]()
    diverted = defaultdict[tuple[str, str], list[PeerName]](list)
    narrow = defaultdict[tuple[Family, int, int], list[PeerName]](list)
    for name, paths in peers.items():
        overlay = [(path, record) for path, record in paths.items() if path.layer is Layer.OVERLAY]
        underlay = [record.state for path, record in paths.items() if path.layer is Layer.UNDERLAY]
        is_silent, detour = any(record.state is Answering.SILENT for _, record in overlay), detours.get(name[0])
        if is_silent and detour is not None:
            diverted[detour.cause, detour.cure].append(name)
        elif is_silent:
            (tunnels if Answering.ANSWERS in underlay else nodes).append(name)
        elif leak := _leak(paths):
            leaking[name] = leak
        for path, record in overlay:
            if record.is_narrow:
                narrow[path.family, path.mtu, 0 if record.is_searching else record.sizes.largest].append(name)
    for names in diverted.values():
        yield replace(detours[names[0][0]], peers=tuple(names))
    is_general = not some_answer and len(tunnels) >= _MANY
    if tunnels:
        yield _tunnel(tuple(tunnels), carrier, is_general=is_general)
    if leaking:
        evidence = "; ".join(list(leaking.values())[:_MOST_COMMANDS])
        yield found("peer.loss", carrier=_carried(carrier), evidence=evidence, peers=tuple(leaking))
    for (family, mtu, largest), names in narrow.items():
        is_told = largest and len(names) <= _MOST_COMMANDS
        cures = [narrowed(lease, family, largest) for lease, _ in names] if is_told else []
        yield _narrow(tuple(names), mtu, largest, " && ".join(filter(None, cures)))
    if nodes:
        yield _node(tuple(nodes))


def checksum_finding(names: tuple[PeerName, ...], devices: Set[str], underlay: str, *, is_kept_on: bool) -> Condition:
    """Makes the finding about peers to which packets leave by these devices, and do not pass with a checksum that is
    left to them.

    `is_kept_on`: this service turns the offload of overlay devices on.
    """
    left_by = sorted(devices)
    is_ours = is_kept_on and underlay not in devices
    remark = " This dataplane keeps it on: start it without `--checksum-offload=on`." if is_ours else ""
    offloads = ((name, "tx" if name == underlay else "tx-checksum-ip-generic") for name in left_by)
    return found(
        "peer.checksum",
        devices=" and ".join(left_by),
        remark=remark,
        cure="" if is_ours else Cure(*(Command("offload-off", *each) for each in offloads)),
        evidence=f"UDP to port {PORT}: answered with a checksum that the kernel has computed, and not with one that "
        f"it leaves to the device, {PROOFS} times in a row",
        peers=names,
    )


def mute_finding(names: tuple[PeerName, ...]) -> Condition:
    """Makes the finding about peers to which packets pass, and that do not answer pings."""
    evidence = f"UDP to port {PORT} through the overlay: answered that it is closed; ICMP echo: no answer"
    return found("peer.echo", evidence=evidence, peers=names, is_remote=True)


def _leak(paths: Paths) -> str:
    """What probes say of a peer that loses more in the overlay than in the underlay; empty: it does not."""
    leaking = [record for path, record in paths.items() if path.layer is Layer.OVERLAY and record.is_leaking]
    below = [each.lost for path, each in paths.items() if path.layer is Layer.UNDERLAY and each.answered]
    most, least = max((each.lost for each in leaking), default=0), max(below, default=0)
    if most < least + MISSES:
        return ""
    return f"ICMP echo of late: {most} without an answer through the overlay, {least} in the underlay"


def _carried(carrier: str) -> str:
    return carrier or "packets of the network"


def _tunnel(names: tuple[PeerName, ...], carrier: str, *, is_general: bool) -> Condition:
    where = "on this node (no peer answers)" if is_general else "on either node or between them"
    return found(
        "peer.tunnel",
        where=where,
        carrier=_carried(carrier),
        evidence="ICMP echo: three in a row without an answer through the overlay, answers in the underlay",
        peers=names,
        is_general=is_general,
    )


def _narrow(names: tuple[PeerName, ...], mtu: int, largest: int, cure: str) -> Condition:
    """`largest` 0: it is not known."""
    if not largest:
        said = f"ICMP echo with DF: three of {mtu} bytes in a row without an answer, small ones are answered"
        return found("peer.mtu-unknown", mtu=mtu, evidence=said, peers=names)
    return found(
        "peer.mtu",
        mtu=mtu,
        largest=largest,
        less=mtu - largest,
        until_then="; until then, limit the routes" if cure else "",
        cure=cure,
        evidence=f"ICMP echo with DF: {largest} bytes are answered, {largest + 1} are not",
        peers=names,
    )


def _narrow_underlay(names: tuple[PeerName, ...], device: str, mtu: int, largest: int) -> Condition:
    said = f"ICMP echo with DF in the underlay: {largest} bytes are answered, {largest + 1} are not"
    return found("peer.mtu-underlay", device=device, mtu=mtu, largest=largest, evidence=said, peers=names)


def _node(names: tuple[PeerName, ...]) -> Condition:
    evidence = "ICMP echo: three in a row without an answer"
    return found("peer.down", evidence=evidence, peers=names, is_remote=True)
