"""One peer's objects beside what the kernel has in their places now: what is wanted, what is there, and why."""

from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.kernel.programmer import MISSING, SHADOWED, PeerProgrammer, PeerState
from flannelette.services.dataplane.kernel.reconciler import OwnedState, wins
from flannelette.services.dataplane.netlink.fou.values import FouPort
from flannelette.services.dataplane.netlink.iproute2_text import DeviceNames
from flannelette.services.dataplane.netlink.ipsec.values import IkeConnection, IkeKey, XfrmPolicy
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import RTPROT_BOOT, FdbEntry, Hook, KernelObject, Neighbour, Route
from flannelette.services.dataplane.netlink.wireguard.values import WireguardDevice, WireguardPeer
from flannelette.services.dataplane.netlink.wireguard.wireguard_socket import WireguardPeerState
from flannelette.services.dataplane.peers.peer import Peer

_FLANNELS: Final = "as a flanneld makes it, so it goes once ours is there"


@dataclass(frozen=True, slots=True)
class ObjectCheck:
    """A place in the kernel: what shall be in it, what is, and why that is not the same."""

    wanted: KernelObject | None
    """What shall be in the place; None: nothing of ours."""
    actual: KernelObject | None
    """What is in the place; None: nothing."""
    remark: str = ""
    is_lost: bool = False
    """A route of another program takes precedence over ours."""

    @property
    def is_well(self) -> bool:
        """Whether what is wanted is there."""
        return self.wanted is None or self.wanted == self.actual


@dataclass(frozen=True, slots=True)
class KernelView:
    """The kernel, at one moment."""

    divided: OwnedState
    wanted: Container[KernelObject]
    """Objects that all peers together need."""
    failures: Mapping[KernelObject, str]
    """What the kernel has refused, with its words."""
    states: Mapping[Hashable, object] = field(default_factory=dict)
    """See Contents."""

    def places(self, peer: Peer) -> tuple[ObjectCheck, ...]:
        """Compares everything that the peer needs, then whatever else leads to it, with what the kernel has in its
        place.
        """
        concerning = sorted(self._concerning(peer.lease, peer.objects))
        by_key = {item.key: item for item in concerning}
        wanted = [self._place(item, by_key.get(item.key)) for item in sorted(peer.objects)]
        taken = {item.key for item in peer.objects}
        beside = [self._beside(item, peer.objects) for item in concerning if item.key not in taken]
        return (*wanted, *beside)

    def _concerning(self, lease: Lease, objects: Collection[KernelObject]) -> Iterator[KernelObject]:
        """All in the kernel that has to do with the lease, or is in a place that it needs."""
        keys = {item.key for item in objects}
        subnets = {(s.cidr.network_address.packed, s.cidr.prefixlen) for s in lease.subnets}
        gateways = {address for address, _ in subnets}
        texts = {str(s.cidr) for s in lease.subnets}
        public_keys = {item.public_key for item in objects if isinstance(item, WireguardPeer)}
        ends = {s.public_address.packed for s in lease.subnets if s.public_address}
        for item in (*self.divided.ours, *self.divided.foreign):
            match item:
                case Route():
                    is_its_own = (item.dst, item.length) in subnets
                case Neighbour():
                    is_its_own = item.dst in gateways
                case WireguardDevice() | FouPort():
                    is_its_own = False
                case WireguardPeer():
                    is_its_own = item.public_key in public_keys or not subnets.isdisjoint(item.allowed_ips)
                case XfrmPolicy():
                    prefixes = {(item.src, item.src_length), (item.dst, item.dst_length)}
                    is_its_own = not subnets.isdisjoint(prefixes)
                case IkeConnection():
                    is_its_own = item.peer_subnet in texts
                case Hook() | IkeKey():
                    is_its_own = False  # other than by its slot
                case FdbEntry():
                    is_its_own = item.dst in ends and item not in self.wanted
            if is_its_own or item.key in keys:
                yield item

    def _place(self, wanted: KernelObject, actual: KernelObject | None) -> ObjectCheck:
        if wanted == actual:
            return ObjectCheck(wanted, actual, self._state(wanted))
        if actual in self.divided.foreign:
            return ObjectCheck(wanted, actual, "not ours, so it stays, and ours cannot be added", is_lost=True)
        refused = self.failures.get(wanted)
        return ObjectCheck(wanted, actual, f"the kernel refuses ours: {refused}" if refused else self._state(wanted))

    def _state(self, item: KernelObject) -> str:
        return str(self.states.get(item.key, ""))

    def _beside(self, actual: KernelObject, objects: Collection[KernelObject]) -> ObjectCheck:
        if actual not in self.divided.foreign:
            is_flannels = isinstance(actual, Route) and actual.protocol == RTPROT_BOOT
            return ObjectCheck(None, actual, _FLANNELS if is_flannels else "ours, and no longer needed")
        assert isinstance(actual, Route)  # noqa: S101 - only routes are anybody else's
        rivals = (item for item in objects if isinstance(item, Route) and item.destination == actual.destination)
        is_winner = any(wins(actual, rival) for rival in rivals)
        remark = "not ours, and wins over ours" if is_winner else "not ours, and loses to ours"
        return ObjectCheck(None, actual, remark, is_lost=is_winner)


async def inspect_peers(
    programmer: PeerProgrammer, peers: Iterable[Peer]
) -> list[tuple[Peer, tuple[ObjectCheck, ...]]]:
    """The peers, each with its places, from one dump of the kernel. Changes nothing. Raises Unavailable.

    Call it between two turns, so that the kernel is not in the middle of a change of ours.
    """
    now, wanted = await programmer.inspect()
    look = KernelView(now.state, wanted, programmer.reconciler.failures, now.found.states)
    return [(peer, look.places(peer)) for peer in peers]


async def peer_traffic(programmer: PeerProgrammer, peers: Iterable[Peer]) -> dict[str, tuple[int, int]]:
    """Bytes received and sent, by lease name, of the peers for which the kernel counts. Raises Unavailable.

    Call it as `inspect_peers`.
    """
    counted = {
        peer.lease.name: keys
        for peer in peers
        if (keys := [item.key for item in peer.objects if isinstance(item, WireguardPeer)])
    }
    if not counted:
        return {}
    states = (await programmer.inspect())[0].found.states
    traffic = {}
    for name, keys in counted.items():
        found = [state for key in keys if isinstance(state := states.get(key), WireguardPeerState)]
        if found:
            traffic[name] = sum(state.received for state in found), sum(state.sent for state in found)
    return traffic


def state_in(peer: Peer, places: Sequence[ObjectCheck], names: DeviceNames) -> tuple[PeerState, str]:
    """Derives the state of a peer from a dump, not from memory, as `state_of` does for one that is carried and not
    refused.
    """
    for place in places:
        if place.is_lost and place.actual is not None:
            return PeerState.SHADOWED, f"{SHADOWED}: {text(place.actual, names)}"
    if all(place.is_well for place in places):
        return PeerState.PROGRAMMED, peer.reason
    return PeerState.PENDING, MISSING
