"""Decides which leases of the store nodes may have, and why not the others. Pure.

A lease is untrusted data: nodes would route a subnet outside the network, which may have real hosts.
Such a lease stays in the store and reaches no node. Which of two leases that claim the same counts is decided on the
nodes (services/core/leases/conflicts.py); both are served.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flannelette.services.core.family import Network, family_of
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.network_moves import beside
from flannelette.services.core.leases.table import Change, Removed, Upserted, apply
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.stores.store import Changed, Refusal, RefusalKind, Snapshot


class LeaseFilter:
    """Follows the events of a store, and passes on what is served.

    * What is served depends on what the store holds now, not on the order of its changes.
    * Outside the network is a lease with a subnet that does not lie in the network of its family (or is all of it),
      or with no subnet in an enabled family. A lease that lacks a family, or has one that is not enabled, is served:
      clusters change their families node by node. Without a network nothing is outside.
    * A lease outside that a node holds, and that is older than the configuration, is served: its node keeps it until
      an operator says otherwise (ADR 25). The subnets of such leases go with the network, as `beside`. So is one that
      this node had in the table before: its key may have been lost or written again since.
    """

    def __init__(self, network: NetworkConfig | None = None) -> None:
        self.leases: dict[str, Lease] = {}
        """All that the store holds."""
        self.refused: dict[str, Refusal] = {}
        """Leases of the store that are not served, and why."""
        self.changed: frozenset[str] | None = None
        """The leases that the last event concerned; None: all."""
        self._network = network
        self._ranges: dict[int, tuple[Network, int, int]] = {}
        """The network with its first and last address, by IP version."""
        self._outsiders: set[str] = set()
        """Leases outside the network that are served all the same."""
        self._admitted: set[tuple[str, tuple[Network, ...]]] = set()
        """The nodes that have held one of these, with its subnets: they may write it again."""
        self._before: Mapping[str, Lease] = {}
        """The lease table before the event."""
        self._is_beside_due = False
        """`beside` may have changed since it was last passed on."""
        self._is_network_good = True
        """The store has no newer configuration that cannot be used."""

    def take(self, event: Snapshot | Changed, table: Mapping[str, Lease] | None = None) -> Snapshot | Changed:
        """The same event with what is served, in its order. A change that changes nothing is left out.

        `table` has the leases that nodes know up to now.
        """
        self.changed, self._before = None, table or {}
        if event.network is not None:
            before = self._network.beside if self._network else ()
            event = replace(event, network=replace(event.network, beside=before))
        self._is_network_good = event.network is not None or (self._is_network_good and not event.network_error)
        if isinstance(event, Snapshot):
            self.leases = dict(event.leases)
            self._network = event.network or self._network
            self._judge_all()
            return self._with_beside(replace(event, leases=self.served()))
        if event.network is not None and event.network != self._network:
            return self._with_beside(replace(event, changes=self._with_network(event.network, event.changes)))
        return self._with_beside(replace(event, changes=self._with_changes(event.changes)))

    def served(self) -> dict[str, Lease]:
        """What is served now."""
        refused = self.refused
        return {name: lease for name, lease in self.leases.items() if name not in refused}

    def _with_beside(self, event: Snapshot | Changed) -> Snapshot | Changed:
        """The same, with what is beside the network, if that or the network has changed."""
        if self._network is None or not (self._is_beside_due or event.network):
            return event
        self._is_beside_due = False
        cidrs = [cidr for name in self._outsiders for cidr in self.leases[name].cidrs]
        network = replace(self._network, beside=beside(self._network, cidrs))
        has_changed = network != self._network
        self._network = network
        if event.network is not None or (has_changed and self._is_network_good):
            return replace(event, network=network)
        return event

    def _with_network(self, network: NetworkConfig, changes: Iterable[Change]) -> tuple[Change, ...]:
        before = self.served()
        self._network = network
        self._admitted.clear()
        apply(changes, self.leases)
        self._judge_all()
        after = self.served()
        return _changes(before, {name: after.get(name) for name in (*before, *after)})

    def _with_changes(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        before: dict[str, Lease | None] = {}
        for change in changes:
            name = change.name
            before.setdefault(name, self._served(name))
            self.leases.pop(name, None)
            self.refused.pop(name, None)
            if name in self._outsiders:
                self._outsiders.remove(name)
                self._is_beside_due = True
            if (lease := change.after) is not None:
                self.leases[name] = lease
                self._judge(lease)
        self.changed = frozenset(before)
        return _changes(before, {name: self._served(name) for name in before})

    def _judge_all(self) -> None:
        self._ranges = {
            n.cidr.version: (n.cidr, int(n.cidr.network_address), int(n.cidr.broadcast_address))
            for n in (self._network.families if self._network else ())
        }
        self._outsiders, self._is_beside_due, self.refused = set(), True, {}
        for lease in self.leases.values():
            self._judge(lease)

    def _judge(self, lease: Lease) -> None:
        """Refuses a lease outside the network, or records that it is served nevertheless."""
        reason = "" if lease.cluster else self._outside(lease)  # a relay gets them imported already
        if not reason:
            return
        revision, claim = self._network.revision if self._network else 0, (lease.node, lease.cidrs)
        known = self._before.get(lease.name)
        was_served = claim in self._admitted or (known is not None and claim == (known.node, known.cidrs))
        is_older = not revision or lease.claim_order < revision
        if not lease.node or lease.is_idle:
            pass  # without a node, nobody keeps it
        elif is_older or was_served:
            self._admitted.add(claim)
            self._outsiders.add(lease.name)
            self._is_beside_due = True
            return
        self.refused[lease.name] = Refusal(RefusalKind.OUTSIDE_NETWORK, reason)

    def _outside(self, lease: Lease) -> str:
        """Why a lease lies outside the network; empty: it does not."""
        is_enabled = not self._ranges
        for subnet in lease.subnets:
            cidr = subnet.cidr
            found = self._ranges.get(cidr.version)
            if found is not None:
                is_enabled = True
                whole, first, last = found
                if cidr.prefixlen <= whole.prefixlen or not first <= int(cidr.network_address) <= last:
                    where = f"subnet {cidr} lies outside the network {whole}"
                    return f"{where}: release it, or correct the network"
        family = family_of(lease.subnets[0].cidr)
        return "" if is_enabled else f"the network has no {family}: release it, or enable {family}"

    def _served(self, name: str) -> Lease | None:
        return None if name in self.refused else self.leases.get(name)


def _changes(before: Mapping[str, Lease | None], after: Mapping[str, Lease | None]) -> tuple[Change, ...]:
    """What is different, in the order of `after`."""
    differing = ((name, lease) for name, lease in after.items() if lease != before.get(name))
    return tuple(Removed(name) if lease is None else Upserted(lease) for name, lease in differing)
