"""Who the peers are: every lease of another node, with what it needs or why it is refused."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from services.core.lease import Lease
from services.dataplane import metrics
from services.dataplane.admission import is_near_own
from services.dataplane.peers import Peer, peer_of
from services.dataplane.rivals import Candidate, Rivalry, losers
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
        self._node = node
        self._situation: Situation | None = None
        self._alone: dict[str, Peer] = {}
        """Each as it is without the others."""
        self._taken: list[Lease] | None = None
        """All leases that there were; None: not known. Two such lists are compared in no time, as long as they hold
        the same ones."""
        self._rivalry: Rivalry | None = None

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
        alone = {lease.name: self._peer(lease, situation, known, has_moved) for lease in self._others(taken)}
        is_same = (
            is_alike and len(alone) == len(known) and all(known.get(name) is peer for name, peer in alone.items())
        )
        self._situation, self._taken = situation, taken
        if is_alike and is_same and self._rivalry is not None:
            return False
        last, self._alone = self.peers, alone
        self._rivalry, self.peers = together(alone, situation)
        _tell(last, self.peers)
        return True

    def take_some(self, names: Collection[str], leases: Mapping[str, Lease]) -> Turnover | None:
        """The leases of these names. None: two leases clash, or did, and nothing was taken: call `take_all`."""
        self._taken = None
        situation, rivalry = self._situation, self._rivalry
        if situation is None or rivalry is None:
            return None
        old = {name: self.peers[name] for name in names if name in self.peers}
        found = [lease for name in names if (lease := leases.get(name)) is not None]
        new = {lease.name: peer_of(lease, situation) for lease in self._others(found)}
        clashes = [rivalry.remove(candidate) for candidate in _candidates(old)]
        clashes += [rivalry.add(candidate) for candidate in _candidates(new)]
        if any(clashes):
            self._rivalry = None
            return None
        for name in old:
            del self.peers[name], self._alone[name]
        self.peers |= new
        self._alone |= new
        _tell(old, new)
        return Turnover(old, new)

    def _others(self, leases: Iterable[Lease]) -> Iterable[Lease]:
        return _others(leases, self._node)

    def _peer(self, lease: Lease, situation: Situation, known: Mapping[str, Peer], has_moved: bool) -> Peer:
        peer = known.get(lease.name)
        if peer is None or peer.lease is not lease:
            return peer_of(lease, situation)
        if has_moved and (peer.refusals or any(is_near_own(subnet, situation) for subnet in lease.subnets)):
            return peer_of(lease, situation)
        return peer


def together(alone: Mapping[str, Peer], situation: Situation) -> tuple[Rivalry, dict[str, Peer]]:
    """The peers as they are beside each other."""
    rivalry = Rivalry(situation.network, _candidates(alone))
    lost = losers(situation.network, rivalry, _candidates(alone))
    beaten = {name: peer_of(alone[name].lease, situation, lost) for name, _ in lost}
    return rivalry, {**alone, **beaten}


def peers_of(leases: Iterable[Lease], node: str, situation: Situation) -> Mapping[str, Peer]:
    """What a roster would come to."""
    alone = {lease.name: peer_of(lease, situation) for lease in _others(leases, node)}
    return together(alone, situation)[1]


def _others(leases: Iterable[Lease], node: str) -> Iterable[Lease]:
    return (lease for lease in leases if lease.node != node and not lease.is_idle)


def _candidates(peers: Mapping[str, Peer]) -> Iterator[Candidate]:
    return ((name, subnet) for name, peer in peers.items() for subnet in peer.candidates)


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
