"""Probes as messages: what they have shown, and those on demand, which ping paths at once, each up to three times.

The packets of all calls together are limited, so that no caller can make a flood of it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from errno import EADDRNOTAVAIL, EINVAL
from ipaddress import ip_address
from itertools import count
from statistics import fmean, median
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.errors import Exhausted, InvalidInput, NotYet
from flannelette.services.core.family import Address, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.diagnose.seen import KnownPods
from flannelette.services.dataplane.kernel.programmer import is_refused, state_of
from flannelette.services.dataplane.netlink.uapi import NUD_REACHABLE
from flannelette.services.dataplane.peers import Peer, PeerContext
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.probes.record import (
    SIGN_BYTES,
    Answering,
    Layer,
    Offload,
    ProbedPath,
    Record,
    paths_of,
)
from flannelette.services.dataplane.probes.sockets import (
    TIMEOUT_SECONDS,
    Datagrams,
    EchoSockets,
    Reply,
    obstacle_of,
    round_trip_of,
)

_PACKETS_PER_SECOND: Final = 200
_CALLS: Final = 4
"""Calls that may run at the same time."""
_AT_ONCE: Final = 50
"""Paths that are waited for together."""
_TRIES: Final = 3
_NOT_OURS: Final = (EINVAL, EADDRNOTAVAIL)
"""The source is no address of this node."""


@frozen
class Question:
    """A request to ping an address."""

    address: Address
    size: int
    """Bytes of the large IP packet."""
    must_answer: bool = True
    """Whether somebody is there to answer."""
    sources: Sequence[Address] = ()
    """The packets come from the first of these that the node has; from one that the kernel chooses if it has none."""


@dataclass(slots=True)
class PathAnswer:
    """The answers to the pings of one address."""

    question: Question
    small: Answering = Answering.UNKNOWN
    full_size: Answering = Answering.UNKNOWN
    round_trip: float = 0.0
    """Seconds, of the first small packet that was answered."""
    lost: int = 0
    source: Address | None = None
    error: str = ""
    """Why the kernel sent none."""
    is_mute: bool = False
    """No ping was answered, and a datagram to a closed port was."""


class OnDemand:
    """Pings when it is asked to."""

    def __init__(self) -> None:
        self._calls = 0
        self._free_at = 0.0
        """When the rate allows the next packet."""

    async def ask(self, questions: Sequence[Question], tries: int = _TRIES) -> AsyncGenerator[PathAnswer, None]:
        """The answers, in the order of the questions. Raises NotYet without the right to send, and Exhausted."""
        if self._calls >= _CALLS:
            raise Exhausted(f"{_CALLS} calls that send probes run already: try again when they have ended")
        self._calls += 1
        try:
            call = _Call(self)
            try:
                for start in range(0, len(questions), _AT_ONCE):
                    some = questions[start : start + _AT_ONCE]
                    for answer in await asyncio.gather(*(call.ask(question, tries) for question in some)):
                        yield answer
            finally:
                call.close()
        finally:
            self._calls -= 1

    async def turn(self) -> None:
        """Returns when the rate allows another packet."""
        now = asyncio.get_running_loop().time()
        at = self._free_at = max(now, self._free_at + 1 / _PACKETS_PER_SECOND)
        if at > now:
            await asyncio.sleep(at - now)


@dataclass(slots=True)
class _Sent:
    at: float
    """When it was sent, by the loop's clock."""
    time: float
    """When it was sent, in Unix time."""
    came: asyncio.Event = field(default_factory=asyncio.Event)
    seconds: float | None = None


class _Call:
    """The sockets of one call, and what is on its way."""

    def __init__(self, limit: OnDemand) -> None:
        self._limit = limit
        self._sequences = count()
        self._sent: dict[int, _Sent] = {}
        try:
            self.sockets = EchoSockets(self._take)
        except OSError as error:
            raise NotYet(f"no probe can be sent: {obstacle_of(error)}") from None
        self._datagrams = Datagrams(self._take)

    def close(self) -> None:
        """Closes the sockets of both kinds of probes."""
        self.sockets.close()
        self._datagrams.close()

    async def ask(self, question: Question, tries: int) -> PathAnswer:
        """Pings with both sizes, and again with that which was not answered."""
        answer = PathAnswer(question)
        round_trips = dict[int, float]()
        for _ in range(tries):
            sizes = [size for size in (0, question.size) if size not in round_trips]
            found = await asyncio.gather(*(self._ping(answer, size) for size in sizes))
            round_trips |= {size: seconds for size, seconds in zip(sizes, found, strict=True) if seconds is not None}
            answer.lost += found.count(None)
            if len(round_trips) == len((0, question.size)):
                break
        if not round_trips:
            sizes = [SIGN_BYTES, question.size] if question.size else [SIGN_BYTES]
            found = await asyncio.gather(*(self._ping(answer, size, is_datagram=True) for size in sizes))
            answer.is_mute = found[0] is not None
            round_trips |= {0: 0.0} if answer.is_mute else {}
            round_trips |= {question.size: 0.0} if found[-1] is not None else {}
        answer.round_trip = round_trips.get(0, 0.0)
        is_there = question.must_answer or bool(round_trips)
        silent = Answering.SILENT if is_there else Answering.UNKNOWN
        answer.small = Answering.ANSWERS if 0 in round_trips else silent
        answer.full_size = Answering.ANSWERS if question.size in round_trips else silent
        return answer

    async def _ping(self, answer: PathAnswer, size: int, *, is_datagram: bool = False) -> float | None:
        """Seconds; None: no answer."""
        await self._limit.turn()
        sequence = next(self._sequences) & 0xFFFF
        sent = self._sent[sequence] = _Sent(asyncio.get_running_loop().time(), time.time())
        try:
            if is_datagram:
                self._datagrams.send(
                    answer.question.address, sequence, size, is_offloaded=False, source=answer.source
                )
            else:
                self._send(answer, sequence, size)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await sent.came.wait()
        except TimeoutError:
            pass
        except OSError as error:  # no route, or a packet that is larger than the MTU of the route
            answer.error = error.strerror or str(error)
        finally:
            del self._sent[sequence]
            self._datagrams.forget(sequence)
        return sent.seconds

    def _send(self, answer: PathAnswer, sequence: int, size: int) -> None:
        """Sends a ping from the first source that the node has."""
        question = answer.question
        for source in (answer.source,) if answer.source else question.sources:
            try:
                self.sockets.send(question.address, sequence, size, source)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    answer.source = source
                    raise
            else:
                answer.source = source
                return
        self.sockets.send(question.address, sequence, size)

    def _take(self, reply: Reply, arrived: float) -> None:
        if (sent := self._sent.get(reply.sequence)) is not None:
            sent.seconds = round_trip_of(sent.time, arrived, asyncio.get_running_loop().time() - sent.at)
            sent.came.set()


_NAMED: Final = 10
_MOST_ADDRESSES: Final = 1_000
_OF_PODS: Final = frozenset(
    "pod-port pod-silent bridge-gone bridge-arp bridge-vlan bridge-down bridge-address".split()
)
"""Checks whose findings explain why pods do not answer."""
_NEIGHBOURS: Final = 8
"""Addresses of each family that are tried as those of a pod."""
ANSWERING = {
    Answering.UNKNOWN: pb.ANSWERING_UNKNOWN,
    Answering.ANSWERS: pb.ANSWERING_YES,
    Answering.SILENT: pb.ANSWERING_SILENT,
}
_OFFLOADS = {
    Offload.UNKNOWN: pb.CHECKSUM_OFFLOAD_UNKNOWN,
    Offload.WORKS: pb.CHECKSUM_OFFLOAD_WORKS,
    Offload.BROKEN: pb.CHECKSUM_OFFLOAD_BROKEN,
}
LAYERS = {Layer.OVERLAY: pb.PROBE_LAYER_OVERLAY, Layer.UNDERLAY: pb.PROBE_LAYER_UNDERLAY}


def probe_summary(prober: Prober) -> pb.ProbeSummary:
    """How many peers answer through the overlay, and which do not."""
    answering = prober.answering[Answering.ANSWERS]
    return pb.ProbeSummary(
        probed=answering + prober.answering[Answering.SILENT],
        answering=answering,
        silent=_named(prober, prober.silent),
        narrow=_named(prober, (each for each in prober.narrow if _is_narrow(prober, each))),
        checksum_broken=_named(prober, prober.miscalculated),
        obstacle=prober.obstacle,
    )


def add_round_trips(summary: pb.ProbeSummary, prober: Prober) -> None:
    """Sets the figures over all peers, of the probes through the overlay."""
    overlay = [
        record
        for records in prober.records.values()
        for path, record in records.items()
        if path.layer is Layer.OVERLAY and record.state is not Answering.UNKNOWN
    ]
    answering = [record.smoothed for record in overlay if record.state is Answering.ANSWERS and not record.is_mute]
    if answering:
        summary.round_trip_microseconds = round(median(answering) * 1_000_000)
    if overlay:
        summary.loss = fmean(record.loss for record in overlay)


def probes_of(prober: Prober, lease: str) -> list[pb.Probe]:
    """Translates the probes of one peer to messages."""
    records = prober.records.get(lease, {})
    return [_probe(path, record, prober.route_mtu(lease, path)) for path, record in records.items()]


def _is_narrow(prober: Prober, lease: str) -> bool:
    """Whether packets of pods do not pass that should, of which the kernel does not tell who sends them."""
    overlay = ((path, each) for path, each in prober.records.get(lease, {}).items() if path.layer is Layer.OVERLAY)
    return any(record.is_narrow and not prober.route_mtu(lease, path) for path, record in overlay)


def _probe(path: ProbedPath, record: Record, route_mtu: int) -> pb.Probe:
    probe = pb.Probe(
        layer=LAYERS[path.layer],
        address=str(path.address),
        state=ANSWERING[record.state],
        sent=record.sent,
        answered=record.answered,
        loss=record.loss,
        round_trip_microseconds=0 if record.is_mute else round(record.smoothed * 1_000_000),
        largest_packet=record.sizes.largest,
        mtu=path.mtu,
        narrow=record.is_narrow and not route_mtu,
        route_mtu=route_mtu,
        checksum_offload=_OFFLOADS[record.offload],
    )
    if record.answered_at:
        probe.last_answer_time.FromMilliseconds(int(record.answered_at * 1000))
    return probe


def _named(prober: Prober, leases: Iterable[str]) -> list[str]:
    return sorted(prober.node_of(lease) for lease in leases)[:_NAMED]


@frozen
class _Asked:
    """A path to a peer."""

    peer: Peer
    path: ProbedPath

    def question(self, prober: Prober) -> Question:
        record = prober.records.get(self.peer.lease.name, {}).get(self.path)
        has_answered = record is not None and bool(record.answered)
        size = prober.route_mtu(self.peer.lease.name, self.path) or self.path.mtu
        return Question(self.path.address, size, self.path.must_answer or has_answered)


async def probe_peers(
    dataplane: Controller, prober: Prober, on_demand: OnDemand, peers: Sequence[Peer]
) -> AsyncGenerator[pb.ProbePeersResponse, None]:
    """See the proto. Raises NotYet, Exhausted."""
    context, mtus = _context(dataplane, prober), dataplane.programmer.reconciler.mtus
    failures = dataplane.programmer.reconciler.failures
    asked = [
        _Asked(peer, path)
        for peer in peers
        for path in paths_of(peer, context, mtus)
        if path.layer is not Layer.OVERLAY or not is_refused(peer, path.family, failures)
    ]
    refused = [probe for peer in peers for probe in _not_carried(dataplane, peer, context)]
    own = [await _pods(dataplane, subnet, on_demand) for subnet in context.own_subnets]
    pods = [each.address for each in own if each.address]
    yield pb.ProbePeersResponse(paths=len(asked) + len(refused), pods=pods, own_pods=own)
    for probe in refused:
        yield pb.ProbePeersResponse(probe=probe)
    async with aclosing(on_demand.ask([each.question(prober) for each in asked])) as answers:
        of = iter(asked)
        async for answer in answers:
            each = next(of)
            for size, answering in ((0, answer.small), (answer.question.size, answer.full_size)):
                if answering is not Answering.UNKNOWN and not answer.is_mute:
                    is_lost = answering is Answering.SILENT
                    prober.take_asked(each.peer.lease.name, each.path, size, None if is_lost else answer.round_trip)
            probe = _answer(answer)
            probe.lease, probe.node, probe.layer = each.peer.lease.name, each.peer.lease.node, LAYERS[each.path.layer]
            yield pb.ProbePeersResponse(probe=probe)


async def probe_addresses(
    dataplane: Controller, prober: Prober, on_demand: OnDemand, texts: Sequence[str]
) -> AsyncGenerator[pb.ProbeAddressesResponse, None]:
    """See the proto. Raises InvalidInput, NotYet, Exhausted."""
    if not 1 <= len(texts) <= _MOST_ADDRESSES:
        raise InvalidInput(f"give 1 to {_MOST_ADDRESSES} addresses, not {len(texts)}")
    addresses = [_address(text) for text in texts]
    context = _context(dataplane, prober)
    questions = [_to_address(context, each, _path_mtu(dataplane, prober, each)) for each in addresses]
    async with aclosing(on_demand.ask(questions)) as answers:
        async for answer in answers:
            yield pb.ProbeAddressesResponse(probe=_answer(answer))


def _context(dataplane: Controller, prober: Prober) -> PeerContext:
    if prober.obstacle:
        raise NotYet(f"no probe can be sent: {prober.obstacle}")
    if dataplane.is_paused or dataplane.programmer.context is None:
        raise NotYet("; ".join(dataplane.health.reasons) or "no network configuration yet")
    return dataplane.programmer.context


def _address(text: str) -> Address:
    try:
        address = ip_address(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no address: write one like 10.5.1.2 or fd00::2") from None
    if address.is_multicast or address.is_unspecified or getattr(address, "scope_id", None):
        raise InvalidInput(f"{text} is not the address of one host")
    return address


def _path_mtu(dataplane: Controller, prober: Prober, address: Address) -> int:
    """Bytes that the route to an address of a peer says that its path carries; 0: as many as the device."""
    for lease, version in dataplane.programmer.peer_set.path_mtus:
        peer = dataplane.programmer.peers.get(lease)
        if version == address.version and peer is not None and any(address in s.cidr for s in peer.candidates):
            paths = [path for path in prober.records.get(lease, {}) if path.family.version == version]
            return max((prober.route_mtu(lease, path) for path in paths), default=0)
    return 0


def _to_address(context: PeerContext, address: Address, path_mtu: int) -> Question:
    """Makes the probe of an address as a pod would ask it: from the bridge of pods, else from the overlay device."""
    family, backend, links = family_of(address), context.backend, context.links
    device = links.devices.get(family)
    sources = [subnet[number] for subnet in context.own_subnets if family_of(subnet) is family for number in (1, 0)]
    mtu = device.mtu if device else backend.mtu(links.underlay)
    return Question(address, path_mtu or mtu, sources=sources)


def _not_carried(dataplane: Controller, peer: Peer, context: PeerContext) -> Iterator[pb.PathProbe]:
    """The subnets of a peer to which there is no path."""
    carried = peer.candidates if any(True for _ in paths_of(peer, context)) else ()
    programmer = dataplane.programmer
    for subnet in peer.lease.subnets:
        if subnet not in carried or is_refused(peer, family_of(subnet.cidr), programmer.reconciler.failures):
            _, reason = state_of(programmer.reconciler, peer, programmer.names(), programmer.unreachable)
            yield pb.PathProbe(
                lease=peer.lease.name,
                node=peer.lease.node,
                layer=LAYERS[Layer.OVERLAY],
                address=str(subnet.cidr),
                small=pb.ANSWERING_SILENT,
                full_size=pb.ANSWERING_SILENT,
                error=reason or "this node does not carry packets to it",
            )


async def _pods(dataplane: Controller, subnet: Network, on_demand: OnDemand) -> pb.OwnPods:
    """One address in an own subnet that a pod answers from: one that CNI has on record, or a neighbour.

    Without any, one that CNI gives first.
    """
    known, near = dataplane.known_pods, await _neighbours(subnet)
    on_record = [address for packed in known.addresses if (address := ip_address(packed)) in subnet]
    addresses = list(dict.fromkeys((*near, *on_record)))
    if not addresses:
        addresses = [subnet[number] for number in range(2, min(2 + _NEIGHBOURS, subnet.num_addresses - 1))]
    questions = [Question(address, 0, must_answer=False) for address in addresses[:_NEIGHBOURS]]
    async with aclosing(on_demand.ask(questions, tries=1)) as answers:
        found = [answer.question.address async for answer in answers if answer.small is Answering.ANSWERS]
    if found:
        return pb.OwnPods(subnet=str(subnet), address=str(found[0]))
    found_here = (each.cause for each in dataplane.findings if each.is_broken and each.check in _OF_PODS)
    if cause := next(found_here, ""):
        return pb.OwnPods(subnet=str(subnet), silent=True, reason=cause)
    is_near = bool({*on_record}.intersection(await _neighbours(subnet)))
    reason = _why_no_pod(known, on_record, is_near=is_near)
    return pb.OwnPods(subnet=str(subnet), silent=bool(on_record) and not is_near, reason=reason)


async def _neighbours(subnet: Network) -> list[Address]:
    """The addresses of which a MAC is known, those first that were confirmed of late."""
    with Inspector() as inspector:
        known = await inspector.all_neighbours(family_of(subnet))
    places = sorted(known, key=lambda place: not place[1] & NUD_REACHABLE)
    return [address for data, _ in places if (address := ip_address(data)) in subnet]


def _why_no_pod(known: KnownPods, on_record: Sequence[Address], *, is_near: bool) -> str:
    if is_near:
        return "its pods answer ARP or NDP, and no ping"
    if on_record:
        more = f" and {len(on_record) - 1} more" if len(on_record) > 1 else ""
        return f"its pods do not answer their own node: {on_record[0]}{more}"
    here = f"{known.links} pods have interfaces, and no address answers" if known.links else "no pod is known there"
    return f"{here}; {known.obstacle}" if known.obstacle else here


def _answer(answer: PathAnswer) -> pb.PathProbe:
    return pb.PathProbe(
        address=str(answer.question.address),
        source=str(answer.source or ""),
        small=ANSWERING[answer.small],
        full_size=ANSWERING[answer.full_size],
        size=answer.question.size,
        round_trip_microseconds=round(answer.round_trip * 1_000_000),
        lost=answer.lost,
        error=answer.error,
    )
