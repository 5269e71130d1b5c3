"""Which leases of the store are served, and why the others are not. Pure.

A lease is data from strangers: one that lies outside the network would be routed over somebody's real addresses, and
one that overlaps another's subnet would cut that peer off. Such leases are in the store and reach no node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from services.core.family import Network, family_of
from services.core.lease import Lease
from services.core.network import NetworkConfig, contains
from services.core.pending import beside
from services.core.table import Change, Removed, Upserted
from services.lease.guard.overlaps import Overlaps, Place, place_of
from services.lease.guard.precedence import Precedence
from services.lease.refusal import Kind, Refusal
from services.lease.store import Changed, Snapshot


class Admission:
    """Follows the events of a store, and makes of them what is served.

    * Whatever the history, what is served is what an Admission that was only told the end would serve.
    * Outside the network is a lease with a subnet that does not lie in the network of its family (or is all of it),
      or with no subnet in an enabled family. A lease that lacks a family, or has one that is not enabled, is served:
      clusters change their families node by node. Without a network nothing is outside.
    * A lease outside that a node holds, and that is older than the configuration, is served: its node keeps it until
      an operator says otherwise (ADR 25). Where such leases lie is told with the network, as `beside`. So is one that
      this node had in the table before: its key may have been lost or written anew since.
    * Of leases that overlap, one is served: see Precedence.
    * Two leases with one public address are both served. Neither takes anything from the other, and a node that
      changes its subnet has two for a while.
    """

    def __init__(self, network: NetworkConfig | None = None) -> None:
        self.leases: dict[str, Lease] = {}
        """All that the store holds."""
        self.refused: dict[str, Refusal] = {}
        """Those of them that are not served."""
        self.concerned: frozenset[str] | None = None
        """Whose standing the last event may have changed; None: everybody's."""
        self._network = network
        self._precedence = Precedence(())
        self._outsiders: set[str] = set()
        """Leases outside the network that are served all the same."""
        self._admitted: set[tuple[str, tuple[Network, ...]]] = set()
        """The nodes that have held one of these, with its subnets: they may write it anew."""
        self._before: Mapping[str, Lease] = {}
        """What the table has, while an event is taken."""
        self._is_beside_due = False
        """They are others since that was last told."""
        self._is_network_good = True
        """The store has no newer configuration that cannot be used."""
        self._bounds: dict[int, tuple[Network, Place, Place]] = {}
        """Of each enabled family: the network, and the places between which its subnets are."""

    def take(self, event: Snapshot | Changed, table: Mapping[str, Lease] | None = None) -> Snapshot | Changed:
        """The same event with what is served, in its order; who makes room for another goes before all.

        A change that changes nothing is left out. `table` has the leases that nodes know up to now.
        """
        self.concerned, self._before = None, table or {}
        before = self._network.beside if self._network else ()
        if event.network is not None:
            event = replace(event, network=replace(event.network, beside=before))
        self._is_network_good = event.network is not None or (self._is_network_good and not event.network_error)
        if isinstance(event, Snapshot):
            self.leases = dict(event.leases)
            self._network = event.network or self._network
            self._judge_all()
            taken: Snapshot | Changed = replace(event, leases=self.served())
        elif event.network is not None and event.network != self._network:
            taken = replace(event, changes=self._with_network(event.network, event.changes))
        else:
            taken = replace(event, changes=self._with_changes(event.changes))
        return self._with_beside(taken)

    def served(self) -> dict[str, Lease]:
        """What is served now."""
        refused = self.refused
        if not refused:
            return dict(self.leases)
        return {name: lease for name, lease in self.leases.items() if name not in refused}

    def _with_beside(self, event: Snapshot | Changed) -> Snapshot | Changed:
        """The same, with what is beside the network now if that is news, or the network is."""
        if self._network is None or not (self._is_beside_due or event.network):
            return event
        self._is_beside_due = False
        cidrs = [cidr for name in self._outsiders for cidr in self.leases[name].cidrs]
        network = replace(self._network, beside=beside(self._network, cidrs))
        is_news = network != self._network
        self._network = network
        if event.network is not None or (is_news and self._is_network_good):
            return replace(event, network=network)
        return event

    def _with_network(self, network: NetworkConfig, changes: Iterable[Change]) -> tuple[Change, ...]:
        before = self.served()
        self._network = network
        self._admitted.clear()
        for change in changes:
            if isinstance(change, Upserted):
                self.leases[change.lease.name] = change.lease
            else:
                self.leases.pop(change.name, None)
        self._judge_all()
        after = self.served()
        return _changes(before, {name: after.get(name) for name in (*before, *after)})

    def _with_changes(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        before: dict[str, Lease | None] = {}
        for change in changes:
            name, lease = (change.lease.name, change.lease) if isinstance(change, Upserted) else (change.name, None)
            self._note(before, name)
            old = self.leases.get(name)
            if lease is not None and old is not None and _is_as_good(old, lease):
                self.leases[name] = lease
                continue
            concerned: set[str] = set()
            if old is not None:
                if name not in self.refused or self.refused[name].kind is Kind.OVERLAP:
                    concerned |= self._precedence.remove(name)
                del self.leases[name]
                self.refused.pop(name, None)
                if name in self._outsiders:
                    self._outsiders.remove(name)
                    self._is_beside_due = True
            if lease is not None:
                self.leases[name] = lease
                if reason := self._refused_outside(lease):
                    self.refused[name] = Refusal(Kind.OUTSIDE_NETWORK, reason)
                else:
                    concerned |= self._precedence.add(lease)
            for other in concerned - {name} if lease is None else concerned:
                self._note(before, other)
                self._judge(other)
        self.concerned = frozenset(before)
        others = before.keys() - {c.lease.name if isinstance(c, Upserted) else c.name for c in changes}
        order = (*(name for name in before if name in others and name in self.refused), *before)
        return _changes(before, {name: self._served(name) for name in order})

    def _judge_all(self) -> None:
        """From scratch."""
        families = self._network.families if self._network else ()
        self._bounds = {
            n.cidr.version: (n.cidr, place_of(n.cidr), (int(n.cidr.broadcast_address) + 1, 0)) for n in families
        }
        overlaps = Overlaps(self.leases.values())
        suspects = overlaps.outside({version: (first, last) for version, (_, first, last) in self._bounds.items()})
        self._outsiders, self._is_beside_due = set(), True
        self.refused = {
            name: Refusal(Kind.OUTSIDE_NETWORK, reason)
            for name, lease in self.leases.items()
            if name in suspects and (reason := self._refused_outside(lease))
        }
        self._precedence = Precedence(self.served().values(), overlaps if not self.refused else None)
        for name in self._precedence.beaten:
            self._judge(name)

    def _judge(self, name: str) -> None:
        """Takes over what the precedence says of a lease."""
        other = self._precedence.beaten.get(name)
        if other is None:
            self.refused.pop(name, None)
        else:
            reason = _overlap(self.leases[name], self.leases[other])
            self.refused[name] = Refusal(Kind.OVERLAP, reason, other)

    def _refused_outside(self, lease: Lease) -> str:
        """Why a lease is not served, because of where it lies; empty: it is."""
        reason = self._outside(lease)
        if not reason or not lease.node or lease.is_idle:
            return reason
        revision, claim = self._network.revision if self._network else 0, (lease.node, lease.cidrs)
        known = self._before.get(lease.name)
        was_served = claim in self._admitted or (known is not None and claim == (known.node, known.cidrs))
        if revision and lease.claim_order >= revision and not was_served:
            return reason
        self._admitted.add(claim)
        self._outsiders.add(lease.name)
        self._is_beside_due = True
        return ""

    def _outside(self, lease: Lease) -> str:
        is_enabled = not self._bounds
        for subnet in lease.subnets:
            bounds = self._bounds.get(subnet.cidr.version)
            if bounds is not None:
                is_enabled = True
                whole, first, last = bounds
                if not first < place_of(subnet.cidr) < last:
                    where = f"its subnet {subnet.cidr} lies outside the network {whole}"
                    return f"{where}: release it, or correct the network"
        family = family_of(lease.subnets[0].cidr)
        return "" if is_enabled else f"the network has no {family}: release it, or enable {family}"

    def _served(self, name: str) -> Lease | None:
        return None if name in self.refused else self.leases.get(name)

    def _note(self, before: dict[str, Lease | None], name: str) -> None:
        if name not in before:
            before[name] = self._served(name)


def _is_as_good(old: Lease, new: Lease) -> bool:
    """Whether only what is published differs: no other lease is concerned."""
    is_claim_the_same = (old.node, old.claim_order) == (new.node, new.claim_order)
    return is_claim_the_same and [s.cidr for s in old.subnets] == [s.cidr for s in new.subnets]


def _changes(before: Mapping[str, Lease | None], after: Mapping[str, Lease | None]) -> tuple[Change, ...]:
    """What is different, in the order of `after`."""
    differing = ((name, lease) for name, lease in after.items() if lease != before.get(name))
    return tuple(Removed(name) if lease is None else Upserted(lease) for name, lease in differing)


def _overlap(lease: Lease, other: Lease) -> str:
    subnet, rival = next(
        (ours.cidr, theirs.cidr)
        for ours in lease.subnets
        for theirs in other.subnets
        if contains(ours.cidr, theirs.cidr) or contains(theirs.cidr, ours.cidr)
    )
    if other.node and not lease.node:
        why = f"which node {other.node} holds"
    else:
        why = "which is older" + (f" (node {other.node})" if other.node else "")
    return f"its subnet {subnet} overlaps {rival} of the lease {other.name}, {why}: delete the one that is wrong"
