"""The dataplane as messages: what GetStatus, WatchStatus and ListPeers answer."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.conditions import MOST_REPORTED, ROWS, Condition, gravest
from flannelette.services.core.cure import commands_of
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.api.probes import probe_summary
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.events import Cause, NodeJournal, claim_findings
from flannelette.services.dataplane.kernel.programmer import (
    ObjectCheck,
    PeerProgrammer,
    PeerState,
    refused_findings,
    state_in,
    state_of,
)
from flannelette.services.dataplane.links.interfaces import read_counters
from flannelette.services.dataplane.netlink.kinds import kind_of, text
from flannelette.services.dataplane.netlink.object_text import DeviceNames, address, mac
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route
from flannelette.services.dataplane.peers import Peer
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.runtime.conditions import condition_to_proto, older_finding
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.health import Health

CAUSES: Final = {cause: pb.RepairCause.Value(f"REPAIR_CAUSE_{cause.name}") for cause in Cause}
_NAMED = 10
"""Peers of a finding, or of an earlier backend."""
_STATES = {
    PeerState.PROGRAMMED: pb.PEER_STATE_PROGRAMMED,
    PeerState.PENDING: pb.PEER_STATE_PENDING,
    PeerState.FAILED: pb.PEER_STATE_FAILED,
    PeerState.SHADOWED: pb.PEER_STATE_SHADOWED,
    PeerState.IGNORED: pb.PEER_STATE_IGNORED,
}


def status_of(dataplane: Controller, prober: Prober, health: Health, started_at: float) -> pb.Status:
    """Summarises the state of the node as a message."""
    config, feed, programmer = dataplane.tracker.config, dataplane.feed, dataplane.programmer
    names, found = programmer.names(), findings_of(dataplane, prober)
    status = pb.Status(
        ready=health.ready,
        reasons=health.reasons,
        node=dataplane.node,
        version=version(),
        backend=config.network.backend_type if config else "",
        backend_way=config.backend.way if config else "",
        lease=_own_lease(dataplane),
        underlay=_underlay(dataplane),
        devices=[
            pb.Device(name=d.name, mac=d.mac, mtu=d.mtu, description=d.description)
            for d in dataplane.tracker.all_devices()
        ],
        peers=counts(programmer),
        lease_service_connected=feed.connected,
        store_connected=feed.connected and feed.table.store is not None and feed.table.store.connected,
        cursor=dataplane.status.cursor,
        last_resync_changes=programmer.last_resync_changes,
        repairs=dataplane.journal.repairs.total(),
        repairs_by_cause=repair_counts(dataplane.journal),
        unclaimed=sorted(text(route, names) for route in programmer.reconciler.foreign),
        ip_masq=dataplane.settings.ip_masq,
        mtu=config.backend.mtu(config.underlay) if config else 0,
        findings=[_older(each) for each in found],
        conditions=[condition_to_proto(each) for each in (*health.unready, *found)],
        pending=str(dataplane.change.move or ""),
        warnings=[*config.network.warnings, *config.warnings] if config else [],
        earlier_backends=_earlier(dataplane),
        probes=probe_summary(prober),
    )
    if dataplane.cached_table.table is not None:
        status.remembered_time.FromMilliseconds(int(dataplane.cached_table.confirmed_at * 1000))
    if programmer.last_resync is not None:
        status.last_resync_time.FromMilliseconds(int(programmer.last_resync * 1000))
    status.start_time.FromMilliseconds(int(started_at * 1000))
    return status


def add_counters(devices: Iterable[pb.Device]) -> None:
    """Sets what the kernel has counted on the devices that it has."""
    counted = read_counters()
    for device in devices:
        if counters := counted.get(device.name):
            device.received_bytes, device.received_packets = counters.received_bytes, counters.received_packets
            device.sent_bytes, device.sent_packets = counters.sent_bytes, counters.sent_packets


def findings_of(dataplane: Controller, prober: Prober) -> list[Condition]:
    """What of the host is in the way, who writes this node's key, who claims what another node has, who is silent,
    and what the service itself lacks.
    """
    fight, peer_set = dataplane.renewer.contested_key, dataplane.programmer.peer_set
    explained = {lease for each in dataplane.findings if each.is_broken for lease, _ in each.peers}
    peers = [peer for peer in peer_set.peers.values() if peer.refusals and peer.lease.name not in explained]
    claims = claim_findings(peer_set.own_losses, peers, prober.is_away)
    programmer = dataplane.programmer
    of_node = {each.code for each in dataplane.findings if each.breaks_node}
    refused = [
        each
        for each in refused_findings(programmer.reconciler, peer_set.peers.values(), programmer.names())
        if of_node.isdisjoint(ROWS[each.code].after)
    ]
    return [
        *dataplane.findings,
        *([fight] if fight else ()),
        *claims,
        *refused,
        *prober.findings(),
        *dataplane.health.findings,
    ]


def reported_findings(dataplane: Controller, prober: Prober) -> tuple[Condition, ...]:
    """What the lease service is told: the gravest, without what is no fault of this node."""
    own = (each for each in findings_of(dataplane, prober) if not each.is_remote)
    return tuple(each.bounded() for each in gravest(own)[:MOST_REPORTED])


def repair_counts(journal: NodeJournal) -> list[pb.RepairCount]:
    """The repairs since the start, by cause."""
    repairs = journal.repairs
    return [pb.RepairCount(cause=number, objects=repairs[each]) for each, number in CAUSES.items() if repairs[each]]


def _earlier(dataplane: Controller) -> list[pb.EarlierBackend]:
    programmer, found = dataplane.programmer, list[pb.EarlierBackend]()
    for each in programmer.context.earlier if programmer.context else ():
        peers = [peer.lease for peer in programmer.peers.values() if peer.via == each.name]
        nodes = sorted(lease.node or lease.name for lease in peers)[:_NAMED]
        found.append(pb.EarlierBackend(backend=each.name, peer_count=len(peers), peers=nodes))
    return found


def _older(condition: Condition) -> pb.Finding:
    """The condition for a command line before 0.3."""
    named = () if condition.is_general else condition.peers
    return older_finding(
        pb.Finding,
        condition,
        evidence=condition.evidence,
        peers=[node or lease for lease, node in named[:_NAMED]],
        peer_count=len(named),
        remote=condition.is_remote,
        commands=[pb.CureCommand(code=each.code, arguments=each.arguments) for each in commands_of(condition.cure)],
    )


def counts(programmer: PeerProgrammer) -> pb.PeerCounts:
    """How many peers there are in which state."""
    now = time.time()
    expired = sum(1 for peer in programmer.peers.values() if (peer.lease.expires_at or now) < now)
    return pb.PeerCounts(total=len(programmer.peers), expired=expired, **states(programmer))


def chosen_peers(programmer: PeerProgrammer, name: str) -> list[Peer]:
    """The peers of a lease name or a node; all of them for an empty name. Sorted by name."""
    chosen = [p for p in programmer.peers.values() if not name or name in (p.lease.name, p.lease.node)]
    return sorted(chosen, key=lambda peer: peer.lease.name)


def list_peers(programmer: PeerProgrammer, name: str) -> list[pb.Peer]:
    """Lists the chosen peers from memory, without reading the kernel."""
    names, programmed = programmer.names(), programmer.reconciler.programmed
    return [
        _peer(programmer, peer, [_object(names, item, item in programmed) for item in sorted(peer.objects)])
        for peer in chosen_peers(programmer, name)
    ]


def list_places(programmer: PeerProgrammer, looks: Iterable[tuple[Peer, Sequence[ObjectCheck]]]) -> list[pb.Peer]:
    """Lists peers as an inspection of the kernel has shown them."""
    names, found = programmer.names(), []
    for peer, places in looks:
        objects = [_object(names, p.wanted, p.wanted == p.actual, p.actual, p.remark) for p in places]
        message = _peer(programmer, peer, objects)
        if message.state not in (pb.PEER_STATE_FAILED, pb.PEER_STATE_IGNORED):
            state, message.reason = state_in(peer, places, names)
            message.state = _STATES[state]
        found.append(message)
    return found


def states(programmer: PeerProgrammer) -> Counter[str]:
    """How many peers are in which state, by the fields of PeerCounts. Also for another thread than the loop's."""
    found = Counter({state.value: 0 for state in PeerState})
    found.update(
        state_of(programmer.reconciler, peer, {}, programmer.unreachable)[0].value
        for peer in list(programmer.peers.values())
    )
    return found


def _peer(programmer: PeerProgrammer, peer: Peer, objects: Iterable[pb.KernelObject]) -> pb.Peer:
    state, reason = state_of(programmer.reconciler, peer, programmer.names(), programmer.unreachable)
    lease: Lease = peer.lease
    return pb.Peer(
        name=lease.name,
        node=lease.node,
        subnets=[str(s.cidr) for s in lease.subnets],
        public_addresses=[str(s.public_address) for s in lease.subnets if s.public_address],
        state=_STATES[state],
        reason=reason,
        objects=objects,
    )


def _object(
    names: DeviceNames,
    wanted: KernelObject | None,
    is_programmed: bool,
    actual: KernelObject | None = None,
    remark: str = "",
) -> pb.KernelObject:
    item = actual if wanted is None else wanted
    ifindex = item.ifindex if item is not None else 0
    return pb.KernelObject(
        text=_text(wanted, names),
        programmed=is_programmed,
        actual=_text(actual, names),
        remark=remark,
        kind=kind_of(item).label if item is not None else "",
        device=names.get(ifindex, f"if{ifindex}") if ifindex else "",
        gateway=address(item.gateway) if isinstance(item, Route) and item.gateway else "",
        mac=mac(item.mac) if isinstance(item, Neighbour | FdbEntry) else "",
    )


def _text(item: KernelObject | None, names: DeviceNames) -> str:
    return f"{kind_of(item).label} {text(item, names)}" if item is not None else ""


def _own_lease(dataplane: Controller) -> pb.OwnLease | None:
    lease = dataplane.own.lease
    if lease is None:
        return None
    own = pb.OwnLease(name=lease.name, subnets=[str(s.cidr) for s in lease.subnets])
    if lease.expires_at is not None:
        own.expire_time.FromMilliseconds(int(lease.expires_at * 1000))
    if dataplane.renewer.renew_at is not None:
        own.renew_time.FromMilliseconds(int(dataplane.renewer.renew_at * 1000))
    return own


def _underlay(dataplane: Controller) -> pb.Underlay | None:
    config = dataplane.tracker.config
    if config is None:
        return None
    underlay = config.underlay
    return pb.Underlay(
        interface=underlay.name,
        addresses=[str(a) for a in underlay.addresses],
        public_addresses=[str(a) for a in underlay.public_addresses],
        mtu=underlay.mtu,
        reason=underlay.reason,
    )
