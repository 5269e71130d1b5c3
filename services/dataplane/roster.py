"""Who the peers are: every lease of another node, with what it needs or why it is refused."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from services.core.conflicts import Claim, Conflicts, Loss, losses
from services.core.lease import Lease
from services.dataplane import metrics
from services.dataplane.admission import is_near_own
from services.dataplane.peers import Losses, Peer, peer_of
from services.dataplane.situation import Situation
from services.runtime.logs import get_logger

log = get_logger()


@dataclass(frozen=True, slots=True)
class Turnover:
    """Of some peers, what they were and what they are."""

    old: Mapping[str, Peer]
    new: Mapping[str, Peer]


class Roster:
    """`peers` by lease name. A refusal is logged and counted when it is new, not at each look."""

    def __init__(self, node: str) -> None:
        self.peers: dict[str, Peer] = {}
        self.own_losses: tuple[Loss, ...] = ()
        """What of our own lease other nodes do not carry, because another lease claims the same and keeps it."""
        self._node = node
        self._situation: Situation | None = None
        self._alone: dict[str, Peer] = {}
        """Each as it is without the others; also our own lease, of which only the claims count."""
        self._taken: list[Lease] | None = None
        """All leases that there were; None: not known. Two such lists are compared in no time, as long as they hold
        the same ones."""
        self._conflicts: Conflicts | None = None

    def take_all(self, situation: Situation, leases: Iterable[Lease]) -> bool:
        """All leases there are; whether any peer is new or another one now.

        What has not changed is not thought through again, nor, when only our own subnets have, what is far from them.
        """
        last_situation, taken = self._situation, [*leases]
        if taken == self._taken and situation == last_situation:
            return False
        is_alike = last_situation is not None and situation.differs_by_own_subnets_only(last_situation)
        known = self._alone if is_alike else {}
        has_moved = situation != last_situation
        alone = {lease.name: self._peer(lease, situation, known, has_moved) for lease in taken if not lease.is_idle}
        is_same = (
            is_alike and len(alone) == len(known) and all(known.get(name) is peer for name, peer in alone.items())
        )
        self._situation, self._taken = situation, taken
        if is_alike and is_same and self._conflicts is not None:
            return False
        last, self._alone = self.peers, alone
        self._conflicts, self.peers, lost = together(alone, self._node, situation)
        self.own_losses = tuple(loss for loss in lost.values() if loss.lease.node == self._node)
        _tell(last, self.peers)
        return True

    def take_some(self, names: Collection[str], leases: Mapping[str, Lease]) -> Turnover | None:
        """The leases of these names. None: two claim the same, or did, and nothing was taken: call `take_all`."""
        self._taken = None
        situation, conflicts = self._situation, self._conflicts
        if situation is None or conflicts is None:
            return None
        old = {name: self._alone[name] for name in names if name in self._alone}
        found = (lease for name in names if (lease := leases.get(name)) is not None and not lease.is_idle)
        new = {lease.name: _alone(lease, self._node, situation) for lease in found}
        clashes = [conflicts.remove(claim) for claim in _claims(old)]
        clashes += [conflicts.add(claim) for claim in _claims(new)]
        if any(clashes):
            self._conflicts = None
            return None
        for name in old:
            del self._alone[name]
        self._alone |= new
        peers = {name: peer for name, peer in new.items() if peer.lease.node != self._node}
        before = {name: self.peers.pop(name) for name in old if name in self.peers}
        self.peers |= peers
        _tell(before, peers)
        return Turnover(before, peers)

    def _peer(self, lease: Lease, situation: Situation, known: Mapping[str, Peer], has_moved: bool) -> Peer:
        peer = known.get(lease.name)
        if peer is None or peer.lease is not lease:
            return _alone(lease, self._node, situation)
        if has_moved and (peer.refusals or any(is_near_own(subnet, situation) for subnet in lease.subnets)):
            return _alone(lease, self._node, situation)
        return peer


def together(alone: Mapping[str, Peer], node: str, situation: Situation) -> tuple[Conflicts, dict[str, Peer], Losses]:
    """The peers of this node as they are beside each other."""
    shares_addresses = situation.backend.shares_addresses
    conflicts = Conflicts(situation.network, _claims(alone), shares_addresses=shares_addresses)
    lost: Losses = {}
    if conflicts.any():
        lost = losses(situation.network, _claims(alone), shares_addresses=shares_addresses)
    beaten = {name: peer_of(alone[name].lease, situation, lost) for name, _ in lost}
    peers = {**alone, **beaten}
    for name in [name for name, peer in peers.items() if peer.lease.node == node]:
        del peers[name]
    return conflicts, peers, lost


def peers_of(leases: Iterable[Lease], node: str, situation: Situation) -> Mapping[str, Peer]:
    """What a roster would come to."""
    alone = {lease.name: _alone(lease, node, situation) for lease in leases if not lease.is_idle}
    return together(alone, node, situation)[1]


def _alone(lease: Lease, node: str, situation: Situation) -> Peer:
    if lease.node != node:
        return peer_of(lease, situation)
    is_of_this_network = lease.backend_type == situation.backend.lease_type
    return Peer(lease, (), (), lease.subnets if is_of_this_network else ())


def _claims(peers: Mapping[str, Peer]) -> Iterator[Claim]:
    return ((peer.lease, subnet) for peer in peers.values() for subnet in peer.candidates)


def _tell(old: Mapping[str, Peer], new: Mapping[str, Peer]) -> None:
    """What is refused now and was not."""
    told = {name: peer.refusals for name, peer in old.items()}
    fresh = [peer for name, peer in new.items() if peer.refusals and peer.refusals != told.get(name)]
    for peer in fresh:
        for refusal in peer.refusals:
            metrics.REFUSED.labels(refusal.rule).inc()
    if fresh:
        one = fresh[0]
        log.warning(
            "leases are refused" if len(fresh) > 1 else "a lease is refused",
            leases=len(fresh),
            lease=one.lease.name,
            node=one.lease.node,
            reason=one.reason,
        )
