"""The own lease: what this node asks for, whether what it was given may be used, and what is made of it."""

import time
from collections.abc import Callable

from flannelette.services.core.family import Network
from flannelette.services.core.ipam import fits
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest
from flannelette.services.core.leases.network_moves import takes_away
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.events import Event, NodeEventKind, NodeJournal, Observations
from flannelette.services.dataplane.node.config_tracker import ConfigTracker
from flannelette.services.dataplane.node.lease_renewer import LeaseRenewer
from flannelette.services.dataplane.node.overlay_config import OverlayConfig
from flannelette.services.dataplane.node.subnet_file import subnet_file, what_pods_keep, write_subnet_file
from flannelette.services.dataplane.peers import PathMtus, PeerContext, reject_own
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.runtime.cache import stale_reason
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


class NodeLease:
    """Devices, addresses and `subnet.env`, as the lease that the holder has says."""

    def __init__(
        self,
        node: str,
        settings: DataplaneSettings,
        renewer: LeaseRenewer,
        health: Health,
        journal: NodeJournal,
        cached: Lease | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self.renewer = renewer
        self.cached = cached
        """The lease that the node had published before this process."""
        self.assumed: Lease | None = None
        """The cached lease, as long as cached leases are in force and it may be assumed."""
        self.refusal = ""
        """Why the lease of the lease service must not be used."""
        self._settings = settings
        self._health = health
        self._clock = clock
        self._journal = journal
        self._settled: Lease | None = None
        self._stale_reason = ""
        """Why the cached lease is not certain, while no lease service answers."""
        self._path_mtu = 0
        """Bytes that the narrowest path to a peer carries, where the subnet file follows that; 0: all are wide."""
        self._is_asking = True
        """A lease service may answer a request."""

    @property
    def lease(self) -> Lease | None:
        """The lease that the node holds, or assumes to hold."""
        return self.renewer.lease or self.assumed

    def follow_paths(self, path_mtus: PathMtus) -> bool:
        """Has the subnet file say no more than the narrowest path carries; returns whether that is news."""
        before, self._path_mtu = self._path_mtu, min(path_mtus.values(), default=0)
        return self._path_mtu != before

    @property
    def is_settled(self) -> bool:
        """Whether this lease is applied."""
        return self._settled is self.lease

    @property
    def reason(self) -> str:
        """Why it is not certain that the node holds a lease; empty: it is."""
        return self._stale_reason or self.renewer.reason

    def published(self, table: Table) -> Lease | None:
        """The lease by which peers know this node: the one held, or the one of before a restart."""
        return self.renewer.lease or next((o for o in table.leases.values() if o.node == self.node), None)

    def confirmed_by(self, table: Table) -> Lease | None:
        """The lease that a synced table confirms as the node's: the one held, or the cached one."""
        lease = self.renewer.lease or self.cached
        listed = table.leases.get(lease.name) if lease else None
        if listed is None:
            return self.renewer.lease if not self.renewer.reason else None
        return lease if listed.node == self.node else None

    def subnets(self, table: Table) -> tuple[Network, ...]:
        """The subnets of the lease held; after a restart, until then, those that the table has for the node."""
        held = self.renewer.lease
        own = [held] if held else [lease for lease in table.leases.values() if lease.node == self.node]
        return tuple(subnet.cidr for lease in own for subnet in lease.subnets)

    def use_cached(self, confirmed_at: float | None) -> None:
        """Assumes the cached lease, confirmed at this time (Unix seconds); None: cached leases are not in force."""
        lease, self._is_asking, self._stale_reason, self.assumed = self.cached, confirmed_at is None, "", None
        if lease is None or confirmed_at is None:
            return
        reason = stale_reason(lease, confirmed_at, self._clock())
        if reason:
            self._stale_reason = f"the own lease {lease.name} may be another node's by now: {reason}"
            log.warning("the cached own lease is not used", reason=self._stale_reason)
        else:
            self.assumed = lease
            unconfirmed = "no lease service has confirmed it since the start"
            self._stale_reason = f"the own lease {lease.name} is assumed: {unconfirmed}"

    async def apply(
        self, config: OverlayConfig, tracker: ConfigTracker, table: Table, observed: Observations
    ) -> Observations:
        """Reconciles the device, the own address and `subnet.env`. Raises Misconfigured, Unavailable.

        Returns what `ConfigTracker.reconcile_links` does.
        """
        own = held = self.lease
        misfit = held is not None and not fits(config.network, held) and not self._keeps(held, config.network)
        if misfit:
            own = None
        before, self.refusal = self.refusal, "; ".join(self._refused(config, tracker, own))
        if self.refusal:
            name = held.name if held else ""
            if self.refusal != before:
                log.error("the own lease is refused", lease=name, reason=self.refusal)
                self._journal.note(Event(NodeEventKind.OWN_LEASE, f"own lease {name} not used", self.refusal))
            own = None
        deleted = await tracker.reconcile_links(own, self.published(table), self.cached, observed)
        self.publish(config, tracker, table, is_programmed=False)
        if held is not None and misfit and held is self.renewer.lease:
            self.renewer.invalidate(f"the lease {held.name} does not fit the network configuration any more")
        if own is not None:
            self._write_subnet_file(config, own)
        self._settled = held
        return deleted

    def publish(self, config: OverlayConfig, tracker: ConfigTracker, table: Table, *, is_programmed: bool) -> None:
        """Has the lease say what this configuration makes of the node.

        While a backend changes, once the new one is programmed and works: peers send by it as soon as they see it.
        """
        is_due = tracker.is_working(config) if tracker.earlier.overlays else True
        if self._is_asking and is_due and is_programmed == bool(tracker.earlier.overlays):
            self.renewer.set_request(self._request(config, tracker, self.published(table)), table.network)

    def _keeps(self, held: Lease, network: NetworkConfig) -> bool:
        """Whether the node keeps a lease that is outside the network, until an operator decides (ADR 25)."""
        is_ours = held is not self.renewer.lease or not self.renewer.reason
        return is_ours and takes_away(network, held.cidrs)

    def _refused(self, config: OverlayConfig, tracker: ConfigTracker, own: Lease | None) -> list[str]:
        """Why the own subnets must not be used: an operator's limits and the underlay hold for the own lease, too."""
        context = PeerContext(config.network, config.backend, tracker.links(config), limits=self._settings.limits())
        found = [reject_own(subnet, context.bounds) for subnet in (own.subnets if own else ())]
        return [f"the own lease cannot be used: {each.reason}" for each in found if each]

    def _write_subnet_file(self, config: OverlayConfig, own: Lease) -> None:
        path, mtu = self._settings.subnet_file, config.backend.mtu(config.underlay)
        mtu = min(mtu, self._path_mtu or mtu)
        content = subnet_file(config.network, own, mtu, ip_masq=self._settings.ip_masq)
        kept = what_pods_keep(path, content)
        try:
            if write_subnet_file(path, content):
                if kept:
                    log.warning("running pods keep their previous values until they are recreated", kept=kept)
                log.info("subnet file written", path=str(path), subnets=[str(s) for s in content.subnets])
                subnets = ", ".join(map(str, content.subnets))
                what = f"subnet file written: {path}, {subnets}, mtu {mtu}"
                what += f"; running pods keep {', '.join(kept)} until they are recreated" if kept else ""
                self._journal.note(Event(NodeEventKind.OWN_LEASE, what, "own lease"))
            self._health.set("subnet file")
        except OSError as error:
            self._health.set("subnet file", f"cannot write {path}: {error.strerror}")

    def _request(self, config: OverlayConfig, tracker: ConfigTracker, published: Lease | None) -> LeaseRequest:
        """The request for the own lease.

        A family without an address keeps what the lease says already, so that its subnet stays.
        """
        parts = []
        for family in config.families:
            address = config.underlay.public_address(family)
            said = published.subnet(family) if published else None
            if address is not None:
                data = config.backend.lease_data(family, tracker.devices.get(family))
                parts.append(FamilyRequest(address, data))
            elif said is not None and said.public_address is not None:
                parts.append(FamilyRequest(said.public_address, said.data))
        return LeaseRequest(self.node, config.backend.lease_type, tuple(parts))
