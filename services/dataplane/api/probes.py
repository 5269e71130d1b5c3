"""Probes as messages: what they have shown, and those on demand."""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from ipaddress import ip_address
from statistics import fmean, median
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.errors import InvalidInput, NotYet
from flannelette.services.core.family import Address, Network, family_of
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.diagnose.seen import KnownPods
from flannelette.services.dataplane.kernel.programmer import is_refused, state_of
from flannelette.services.dataplane.netlink.uapi import NUD_REACHABLE
from flannelette.services.dataplane.peers.peer import Peer, PeerContext
from flannelette.services.dataplane.probes.on_demand import OnDemand, PathAnswer, Question
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.probes.record import Answering, Layer, Offload, ProbedPath, Record, paths_of

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
        narrow=_named(prober, prober.narrow),
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
    return [_probe(path, record) for path, record in prober.records.get(lease, {}).items()]


def _probe(path: ProbedPath, record: Record) -> pb.Probe:
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
        narrow=record.is_narrow,
        checksum_offload=_OFFLOADS[record.offload],
    )
    if record.answered_at:
        probe.last_answer_time.FromMilliseconds(int(record.answered_at * 1000))
    return probe


def _named(prober: Prober, leases: Iterable[str]) -> list[str]:
    return sorted(prober.node_of(lease) for lease in leases)[:_NAMED]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A path to a peer."""

    peer: Peer
    path: ProbedPath

    def question(self, prober: Prober) -> Question:
        record = prober.records.get(self.peer.lease.name, {}).get(self.path)
        has_answered = record is not None and bool(record.answered)
        return Question(self.path.address, self.path.mtu, self.path.must_answer or has_answered)


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
    questions = [_to_address(context, each) for each in addresses]
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


def _to_address(context: PeerContext, address: Address) -> Question:
    """Makes the probe of an address as a pod would ask it: from the bridge of pods, else from the overlay device."""
    family, backend, links = family_of(address), context.backend, context.links
    device = links.devices.get(family)
    sources = [subnet[number] for subnet in context.own_subnets if family_of(subnet) is family for number in (1, 0)]
    return Question(address, device.mtu if device else backend.mtu(links.underlay), sources=sources)


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
