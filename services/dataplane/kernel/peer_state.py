"""How far a peer is in the kernel, and why no further."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.family import Family
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.kernel.reconciler import Reconciler
from flannelette.services.dataplane.netlink.iproute2_text import DeviceNames
from flannelette.services.dataplane.netlink.kinds import command, text
from flannelette.services.dataplane.netlink.objects import KernelObject, Route
from flannelette.services.dataplane.peers.peer import Peer


class PeerState(Enum):
    """The state of a peer, as in dataplane.proto, with the names of the fields of PeerCounts."""

    PROGRAMMED = "programmed"
    PENDING = "pending"
    FAILED = "failed"
    SHADOWED = "shadowed"
    IGNORED = "ignored"


MISSING = "objects are missing and will be added"
"""Why a peer is pending."""

SHADOWED = "a route that is not ours wins"
"""Why a peer is shadowed."""

_NONE: Final[Mapping[str, str]] = MappingProxyType({})

AS_IT_SHALL_BE = frozenset({PeerState.PROGRAMMED, PeerState.IGNORED})
"""Nothing is left to do for these."""


def state_of(
    reconciler: Reconciler, peer: Peer, names: DeviceNames, unreachable: Mapping[str, str] = _NONE
) -> tuple[PeerState, str]:
    """The state of a peer, with the reason for whatever is not programmed.

    `unreachable` is Overlay's: also a peer that has everything counts as failed where no packet gets to it.
    """
    if peer.ignored:
        return PeerState.IGNORED, peer.ignored
    for item in peer.objects if reconciler.failures else ():
        if item in reconciler.failures:
            return PeerState.FAILED, f"{text(item, names)}: {reconciler.failures[item]}"
    for route in _routes(peer.objects) if reconciler.foreign else ():
        foreign = reconciler.shadow(route)
        if foreign is not None:
            return PeerState.SHADOWED, f"{SHADOWED}: {text(foreign, names)}"
    for item in peer.objects if reconciler.faults else ():
        if item.key in reconciler.faults:
            return PeerState.FAILED, f"unreachable: {reconciler.faults[item.key]}"
    if unreachable and peer.lease.name in unreachable:
        return PeerState.FAILED, f"unreachable: {unreachable[peer.lease.name]}"
    if reconciler.programmed.issuperset(peer.objects):
        return PeerState.PROGRAMMED, peer.reason
    return PeerState.PENDING, MISSING


def failed(
    reconciler: Reconciler, peers: Iterable[Peer], names: DeviceNames, unreachable: Mapping[str, str] = _NONE
) -> dict[str, str]:
    """The leases that are not in the kernel as they shall be, with the reasons; costs nothing if all are."""
    if not (reconciler.failures or reconciler.faults or reconciler.foreign or unreachable):
        return {}
    states = ((peer.lease.name, *state_of(reconciler, peer, names, unreachable)) for peer in peers)
    return {name: reason for name, state, reason in states if state not in AS_IT_SHALL_BE}


def is_refused(peer: Peer, family: Family, failures: Collection[KernelObject]) -> bool:
    """Whether the kernel has refused our route to a peer in a family, so that no packet gets there."""
    return bool(failures) and any(r.family == family.af and r in failures for r in _routes(peer.objects))


def refused_findings(reconciler: Reconciler, peers: Iterable[Peer], names: DeviceNames) -> list[Condition]:
    """The peers whose objects the kernel has refused, those of one reason together."""
    if not reconciler.failures:
        return []
    by_reason: dict[tuple[str, bool], list[tuple[Peer, KernelObject]]] = {}
    for peer in peers:
        item = next((item for item in peer.objects if item in reconciler.failures), None)
        if item is not None:
            is_direct = isinstance(item, Route) and bool(item.gateway) and not item.onlink
            by_reason.setdefault((reconciler.failures[item], is_direct), []).append((peer, item))
    return [_refused(reason, is_direct, some, names) for (reason, is_direct), some in by_reason.items()]


def _refused(
    reason: str, is_direct: bool, refused: Sequence[tuple[Peer, KernelObject]], names: DeviceNames
) -> Condition:
    peer, item = refused[0]
    of_host_gw = is_direct and peer.lease.backend_type == HostGw.lease_type
    return found(
        "peer.objects-direct" if of_host_gw else "peer.objects",
        object=text(item, names),
        reason=reason,
        evidence=f"{command('replace', item, names)}: {reason}",
        peers=tuple((each.lease.name, each.lease.node) for each, _ in refused),
    )


def unreached(reconciler: Reconciler, peers: Iterable[Peer]) -> str:
    """Why no peer is reached although all have what they need; empty: some are, as far as is known."""
    carried = [peer for peer in peers if peer.objects] if reconciler.faults else []
    faults = [next((reconciler.faults[o.key] for o in p.objects if o.key in reconciler.faults), "") for p in carried]
    return f"no peer is reached: {faults[0]}" if faults and all(faults) else ""


def _routes(objects: Iterable[KernelObject]) -> Iterable[Route]:
    return (item for item in objects if isinstance(item, Route))
