"""The dataplane as messages: what GetStatus, WatchStatus and ListPeers answer."""

from collections import Counter
from collections.abc import Iterable

from flannelette.dataplane.v1 import dataplane_pb2 as pb

from services.core.lease import Lease
from services.dataplane.dataplane import Dataplane
from services.dataplane.netlink.notation import DeviceNames, text
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.overlay import Overlay
from services.dataplane.peers import Peer
from services.dataplane.reconciler import Reconciler
from services.runtime.health import Health
from services.runtime.version import version

_STATE_FIELDS = {
    pb.PEER_STATE_PROGRAMMED: "programmed",
    pb.PEER_STATE_PENDING: "pending",
    pb.PEER_STATE_FAILED: "failed",
    pb.PEER_STATE_SHADOWED: "shadowed",
    pb.PEER_STATE_IGNORED: "ignored",
}


def status_of(dataplane: Dataplane, health: Health, started_at: float) -> pb.Status:
    """Everything about the node at a glance."""
    ground, feed, overlay = dataplane.footing.ground, dataplane.feed, dataplane.overlay
    names = overlay.names()
    status = pb.Status(
        ready=health.ready,
        reasons=health.reasons,
        node=dataplane.node,
        version=version(),
        backend=ground.network.backend_type if ground else "",
        lease=_own_lease(dataplane),
        underlay=_underlay(dataplane),
        devices=[
            pb.Device(name=d.name, mac=d.mac, mtu=d.mtu, description=d.description)
            for d in dataplane.footing.devices.values()
        ],
        peers=counts(overlay),
        lease_service_connected=feed.connected,
        store_connected=feed.connected and feed.table.store is not None and feed.table.store.connected,
        cursor=dataplane.cursor,
        last_resync_changes=overlay.last_resync_changes,
        repairs=overlay.repairs,
        unclaimed=sorted(text(route, names) for route in overlay.reconciler.foreign),
        ip_masq=dataplane.settings.ip_masq,
        mtu=ground.backend.mtu(ground.underlay) if ground else 0,
    )
    if overlay.last_resync is not None:
        status.last_resync_time.FromMilliseconds(int(overlay.last_resync * 1000))
    status.start_time.FromMilliseconds(int(started_at * 1000))
    return status


def counts(overlay: Overlay) -> pb.PeerCounts:
    """How many peers there are in which state."""
    return pb.PeerCounts(total=len(overlay.peers), **states(overlay))


def list_peers(overlay: Overlay, name: str) -> list[pb.Peer]:
    """The peers of a lease name or a node; all of them for an empty name. Sorted by name."""
    chosen = [p for p in overlay.peers.values() if not name or name in (p.lease.name, p.lease.node)]
    names = overlay.names()
    return [_peer(overlay.reconciler, peer, names) for peer in sorted(chosen, key=lambda peer: peer.lease.name)]


def states(overlay: Overlay) -> Counter[str]:
    """How many peers are in which state, by the fields of PeerCounts. Also for another thread than the loop's."""
    found = dict.fromkeys(_STATE_FIELDS.values(), 0)
    for peer in list(overlay.peers.values()):
        found[_STATE_FIELDS[_state(overlay.reconciler, peer, {})[0]]] += 1
    return Counter(found)


def _peer(reconciler: Reconciler, peer: Peer, names: dict[int, str]) -> pb.Peer:
    state, reason = _state(reconciler, peer, names)
    lease: Lease = peer.lease
    return pb.Peer(
        name=lease.name,
        node=lease.node,
        subnets=[str(s.cidr) for s in lease.subnets],
        public_addresses=[str(s.public_address) for s in lease.subnets if s.public_address],
        state=state,
        reason=reason,
        objects=[
            pb.KernelObject(text=f"{_KINDS[item.kind]} {text(item, names)}", programmed=item in reconciler.programmed)
            for item in sorted(peer.objects)
        ],
    )


_KINDS = {1: "neigh", 2: "fdb", 3: "route"}


def _state(reconciler: Reconciler, peer: Peer, names: DeviceNames) -> tuple["pb.PeerState.ValueType", str]:
    if peer.ignored:
        return pb.PEER_STATE_IGNORED, peer.ignored
    for item in peer.objects if reconciler.failures else ():
        if item in reconciler.failures:
            return pb.PEER_STATE_FAILED, f"{text(item, names)}: {reconciler.failures[item]}"
    for item in peer.objects if reconciler.contested else ():
        if item in reconciler.contested:
            other = text(reconciler.contested[item], names)
            return pb.PEER_STATE_FAILED, f"{text(item, names)}: another lease claims the same place, with {other}"
    for route in _routes(peer.objects) if reconciler.foreign else ():
        foreign = reconciler.shadow(route)
        if foreign is not None:
            return pb.PEER_STATE_SHADOWED, f"a route that is not ours wins: {text(foreign, names)}"
    if peer.objects <= reconciler.programmed:
        return pb.PEER_STATE_PROGRAMMED, ""
    return pb.PEER_STATE_PENDING, "objects are missing and will be made"


def _routes(objects: Iterable[KernelObject]) -> Iterable[Route]:
    return (item for item in objects if isinstance(item, Route))


def _own_lease(dataplane: Dataplane) -> pb.OwnLease | None:
    lease = dataplane.holder.lease
    if lease is None:
        return None
    own = pb.OwnLease(name=lease.name, subnets=[str(s.cidr) for s in lease.subnets])
    if lease.expires_at is not None:
        own.expire_time.FromMilliseconds(int(lease.expires_at * 1000))
    if dataplane.holder.renew_at is not None:
        own.renew_time.FromMilliseconds(int(dataplane.holder.renew_at * 1000))
    return own


def _underlay(dataplane: Dataplane) -> pb.Underlay | None:
    ground = dataplane.footing.ground
    if ground is None:
        return None
    underlay = ground.underlay
    return pb.Underlay(
        interface=underlay.name,
        addresses=[str(a) for a in underlay.addresses],
        public_addresses=[str(a) for a in underlay.public_addresses],
        mtu=underlay.mtu,
        reason=underlay.reason,
    )
