"""`flannelette-masq`: starts the process and wires its parts."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2_grpc
from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.family import Network
from flannelette.services.core.network import NetworkConfig
from flannelette.services.masq.api.service import MasqServicer
from flannelette.services.masq.firewalls.auto import AutoFirewall, HostProbe
from flannelette.services.masq.firewalls.guard_table import GuardTable
from flannelette.services.masq.guard import GuardMode
from flannelette.services.masq.kernel.legacy_tables import lock_path
from flannelette.services.masq.kernel.routing import connected_networks, own_networks
from flannelette.services.masq.pod_guard import PodGuardMode
from flannelette.services.masq.reconcile.clamp import MssClamp
from flannelette.services.masq.reconcile.fabric import FabricGuard
from flannelette.services.masq.reconcile.inputs import networks_of
from flannelette.services.masq.reconcile.journal import MasqEventKind
from flannelette.services.masq.reconcile.pods import PodGuardian, PodTable
from flannelette.services.masq.reconcile.reconciler import InputCache, Reconciler
from flannelette.services.masq.settings import MasqSettings
from flannelette.services.runtime.cache import CachedTable, StateFile
from flannelette.services.runtime.events import Event, EventFile, Journal, note_readiness
from flannelette.services.runtime.lease.feed import Connect, Feed, connect_over_grpc
from flannelette.services.runtime.os.names import (
    RANGE,
    Claims,
    NameClaim,
    claims_of,
    lock_name,
    single_instance_within,
    stranger_finder,
)
from flannelette.services.runtime.process.process import Process, run
from flannelette.services.runtime.process.settings import node_name
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.state import unwritten

_ADVICE: Final = (
    "stop it first: two would undo each other's rules; one for another network needs --network with the name of that"
)
_RETRY_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 10.0
"""Seconds for the process before this one to end, in an upgrade."""


@asynccontextmanager
async def build(
    settings: MasqSettings, process: Process, connect: Connect = connect_over_grpc
) -> AsyncIterator[None]:
    """Wires the feed, the reconciler, the firewall and the calls. Raises Misconfigured: no rule could be set here."""
    network, health, rules = settings.node_network, process.health, settings.rules
    service = f"masq{network.suffix}"
    health.finders.append(stranger_finder(lock_name("masq"), claims_of("masq")))
    async with single_instance_within(service, _ADVICE, _PATIENCE_SECONDS):
        probe = HostProbe(rules.nft_table)
        firewall = AutoFirewall(settings.firewall, lock_path(), probe)
        connection = connect(network.lease_address, node_name(settings), process.transport, "")
        state = StateFile(settings.state_dir, service)
        cached = CachedTable(connection.node, state)
        place = Path(settings.state_dir, f"{service}.events") if settings.state_dir else None
        events = EventFile(place, MasqEventKind)
        journal = Journal(earlier=events.read())
        started = f"flannelette-masq {version()} of {connection.node} started"
        journal.note(Event(MasqEventKind.SERVICE_STARTED, started))
        claims = Claims("masq", network.name)
        guarding = settings.guarding
        guard = FabricGuard(connection.node, guarding, GuardTable(guarding.table), own_networks)
        cni, mode = Path(settings.cni_state_dir), PodGuardMode(settings.pod_guard)
        pod_guard = PodGuardian(mode, PodTable(), lambda: reconciler.inputs.subnets, cni)
        clamp = MssClamp(rules.suffix, is_on=settings.clamp_mss)
        reconciler = Reconciler(
            connection.node,
            rules,
            settings.iptables_resync,
            firewall,
            health,
            host_checks=probe.checks,
            earlier_network=cached.network,
            journal=journal,
            refusal=partial(refusal_by_others, claims),
            unclaimed=partial(free_ranges, claims),
            connected=connected_networks,
            guard=guard,
            clamp=clamp,
            pod_guard=None if network.suffix else pod_guard,
        )
        health.finders.append(lambda: unwritten([state, events]))
        cache = InputCache(connection.node, state, cached, reconciler)
        feed = Feed(
            connection,
            lease_pb2.VIEW_OWN if guard.settings.mode is GuardMode.OFF else lease_pb2.VIEW_ALL,
            lambda touched: cache.update(feed.table, feed.error, touched),
            is_observer=guard.settings.mode is not GuardMode.OFF,
            most=settings.max_leases,
        )
        servicer = MasqServicer(reconciler, health, process.stopping)
        process.servicers["flannelette.masq.v1.MasqService"] = lambda server: (
            masq_pb2_grpc.add_MasqServiceServicer_to_server(servicer, server)
        )
        process.jobs |= {
            "feed": feed.run,
            "input cache": cache.run,
            "rules": reconciler.run,
            "fabric guard": guard.run,
            "MSS clamp": clamp.run,
        }
        if not network.suffix:  # cni0 is that of the network without a name
            process.jobs["pod guard"] = pod_guard.run
        process.jobs["event file"] = partial(events.run, journal)
        process.jobs["other networks"] = partial(_retry, reconciler, lambda: cache.update(feed.table, feed.error))
        process.on_readiness = partial(note_readiness, journal, MasqEventKind.READINESS)
        try:
            if rules.masquerade or rules.forward:
                await firewall.open()
            yield
        finally:
            await reconciler.close()
            await cache.close()
            state.close()
            await events.close(journal)
            await connection.close()
            await firewall.close()
            guard.close()
            pod_guard.close()
            clamp.close()
            probe.close()
            claims.close()


def refusal_by_others(claims: Claims, network: NetworkConfig) -> str:
    """Why another network of the host is in the way of this one, or may be; empty: none is."""
    try:
        claims.take(NameClaim(RANGE, str(cidr)) for cidr in networks_of(network))
    except (InvalidInput, Unavailable) as error:
        return str(error)
    return ""


def free_ranges(claims: Claims, former: Iterable[Network]) -> list[Network]:
    """The former ranges that no other network of the host has now."""
    return [each for each in former if claims.is_free(NameClaim(RANGE, str(each)))]


async def _retry(reconciler: Reconciler, learn: Callable[[], None]) -> None:
    """What was in the way of the network may be gone; nothing tells."""
    while True:
        await asyncio.sleep(_RETRY_SECONDS)
        if reconciler.inputs.network_error:
            learn()


def main() -> None:
    """Runs the console script `flannelette-masq`."""
    sys.exit(run("masq", MasqSettings, build))


if __name__ == "__main__":
    main()
