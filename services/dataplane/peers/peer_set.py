"""The set of peers: every lease of another node, with the kernel objects it needs or why it is rejected."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from flannelette.services.core.leases.conflicts import KINDS, Claim, ConflictIndex, Loss, losses
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.peers.peer import Losses, Peer, PeerContext, mark_of, peer_of
from flannelette.services.dataplane.peers.validation import overlaps_own


@dataclass(frozen=True, slots=True)
class PeerDelta:
    """The peers that an update has changed: as they were and as they are, by lease name."""

    old: Mapping[str, Peer]
    new: Mapping[str, Peer]

    @property
    def rejected(self) -> list[Peer]:
        """The peers of which something is rejected that was not, or for another reason."""
        last = {name: peer.refusals for name, peer in self.old.items()}
        return [peer for name, peer in self.new.items() if peer.refusals and peer.refusals != last.get(name)]


_NONE: Final[Losses] = {}


class PeerSet:
    """`peers` by lease name, as the leases and the context of the last update determine them."""

    def __init__(self, node: str, known: Mapping[str, Peer] = MappingProxyType({})) -> None:
        """`known` are peers of another set: what they were before their nodes had another backend counts here too."""
        self.peers: dict[str, Peer] = {}
        self.own_losses: tuple[Loss, ...] = ()
        """Claims of the own lease that other nodes do not carry, because another lease has the older claim."""
        self._node = node
        self._context: PeerContext | None = None
        self._alone = dict(known)
        """Each peer as it is without conflicts; the own lease too, of which only the claims count."""
        self._conflicts: ConflictIndex | None = None
        self._lost: Losses = {}
        self._changed = set[str]()  # peers that had another backend

    def update(
        self, context: PeerContext, leases: Mapping[str, Lease], changed: Collection[str] | None = None
    ) -> PeerDelta:
        """Evaluates the leases that were `changed` since the last update, by name; None, or a new context: all.

        A peer whose lease is the same object is not evaluated again, unless the context is another one for it.
        """
        last, self._context = self._context, context
        is_same = last is not None and (context is last or context == last)
        is_alike = is_same or (last is not None and context.differs_by_own_subnets_only(last))
        names = changed if changed is not None and is_same else {**leases, **self._alone}  # as they lie in memory
        fresh: list[str] = []
        before: list[Peer] = []
        after: list[Peer] = []
        for name in names:
            lease, known = leases.get(name), self._alone.get(name)
            if known is not None:
                if known.lease is lease and (is_same or (is_alike and not _is_near_own(known, context))):
                    continue
                before.append(self._alone.pop(name))
                self._changed.discard(name)
            if lease is not None and not lease.is_idle:
                after.append(self._evaluate(lease, context, known))
                self._alone[name] = after[-1]
                if after[-1].former is not None:
                    self._changed.add(name)
            fresh.append(name)
        lost = self._losses(context, before, after, is_alike=is_alike)
        if lost is not self._lost:
            fresh += {name for name, _ in (*lost, *self._lost)}.difference(fresh)
            self._lost = lost
            own = (loss for loss in lost.values() if loss.lease.node == self._node)
            self.own_losses = tuple(loss for loss in own if loss.winner.node != self._node)
        if self._conflicts is not None:
            fresh += self._forget_formers(context, self._conflicts).difference(fresh)
        return self._replace(context, fresh)

    def _forget_formers(self, context: PeerContext, index: ConflictIndex) -> set[str]:
        """The peers whose former claims another lease has now, and that are not reached by them: they go."""
        gone = set[str]()
        for name in self._changed:
            peer, former = self._alone[name], self._alone[name].former
            overlay = context.overlay_of(peer.lease)
            if former and overlay and overlay.works and any(index.is_claimed((former, s)) for s in former.subnets):
                self._alone[name] = peer_of(peer.lease, context)
                gone.add(name)
        self._changed -= gone
        return gone

    def _evaluate(self, lease: Lease, context: PeerContext, known: Peer | None) -> Peer:
        """The peer without conflicts. `known` is what it was."""
        if lease.node != self._node:
            return peer_of(lease, context, former=_former(lease, self.peers.get(lease.name, known), context))
        is_of_this_network = context.overlay_of(lease) is not None
        return Peer(lease, (), (), lease.subnets if is_of_this_network else ())

    def _losses(self, context: PeerContext, old: Iterable[Peer], new: Iterable[Peer], *, is_alike: bool) -> Losses:
        """The claims that do not count, after these peers have changed; computed anew only if one of them clashes."""
        index = self._conflicts
        if index is None or not is_alike:
            index = ConflictIndex(context.network, _claims(self._alone.values()))
            is_clash, known = index.any(), _NONE if self._lost else self._lost
        else:
            clashes = [index.remove(claim) for claim in _claims(old)]
            clashes += [index.add(claim) for claim in _claims(new)]
            is_clash, known = any(clashes), self._lost
        self._conflicts = index
        if not is_clash:
            return known
        return losses(context.network, _claims(self._alone.values()))

    def _replace(self, context: PeerContext, names: Collection[str]) -> PeerDelta:
        """Puts the peers of these names into `peers`; what has changed."""
        beaten = {name for name, _ in self._lost}
        old: dict[str, Peer] = {}
        new: dict[str, Peer] = {}
        for name in names:
            before, peer = self.peers.pop(name, None), self._alone.get(name)
            if peer is not None and peer.lease.node == self._node:
                peer = None
            elif peer is not None and name in beaten:
                peer = peer_of(peer.lease, context, self._lost, peer.former)
            if peer is not None:
                self.peers[name] = peer
            if peer == before:
                continue
            if before is not None:
                old[name] = before
            if peer is not None:
                new[name] = peer
        return PeerDelta(old, new)


def peers_of(
    leases: Iterable[Lease], node: str, context: PeerContext, known: Mapping[str, Peer] = MappingProxyType({})
) -> Mapping[str, Peer]:
    """The peers that these leases make; `known` as PeerSet has it."""
    found = PeerSet(node, known)
    found.update(context, {lease.name: lease for lease in leases})
    return found.peers


def _is_near_own(peer: Peer, context: PeerContext) -> bool:
    return bool(peer.refusals) or any(overlaps_own(subnet, context.bounds) for subnet in peer.lease.subnets)


def _former(lease: Lease, known: Peer | None, context: PeerContext) -> Lease | None:
    """What the lease of a peer said when its node had another backend, of which this node has the overlay.

    None: it said what is another's. The conflicts of now are those of the lease as it is now.
    """
    if known is None:
        return None
    if lease is known.lease or mark_of(lease) == mark_of(known.lease) or context.overlay_of(known.lease) is None:
        return known.former
    return None if any(each.rule in KINDS for each in known.refusals) else known.lease


def _claims(peers: Iterable[Peer]) -> Iterator[Claim]:
    return ((peer.lease, subnet) for peer in peers for subnet in peer.candidates)
