"""How far a peer is in the kernel, and why no further."""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from services.dataplane.kernel.reconciler import Reconciler
from services.dataplane.netlink.iproute2_text import DeviceNames
from services.dataplane.netlink.kinds import text
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.peers.peer import Peer


class PeerState(Enum):
    """As in dataplane.proto, with the names of the fields of PeerCounts."""

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


def unreached(reconciler: Reconciler, peers: Iterable[Peer]) -> str:
    """Why no peer is reached although all have what they need; empty: some are, as far as is known."""
    carried = [peer for peer in peers if peer.objects] if reconciler.faults else []
    faults = [next((reconciler.faults[o.key] for o in p.objects if o.key in reconciler.faults), "") for p in carried]
    return f"no peer is reached: {faults[0]}" if faults and all(faults) else ""


def _routes(objects: Iterable[KernelObject]) -> Iterable[Route]:
    return (item for item in objects if isinstance(item, Route))
