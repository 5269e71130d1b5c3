"""`flannelette-masq`: the process."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2_grpc

from services.masq.api.service import MasqServicer
from services.masq.firewalls.auto import AutoFirewall
from services.masq.firewalls.detect import HostProbe
from services.masq.firewalls.iptables_legacy.lock import lock_path
from services.masq.reconcile.input_cache import InputCache
from services.masq.reconcile.journal import EventKind
from services.masq.reconcile.reconciler import Reconciler
from services.masq.settings import MasqSettings
from services.runtime.cache.cached_table import CachedTable
from services.runtime.cache.state_file import StateFile
from services.runtime.events.event_file import EventFile
from services.runtime.events.journal import Event, Journal, note_readiness
from services.runtime.lease.feed import Feed, LeaseConnection
from services.runtime.os.single_instance import single_instance_within
from services.runtime.process.options import node_name
from services.runtime.process.process import Process, run
from services.runtime.process.version import version

_ADVICE: Final = (
    "stop it first: two would undo each other's rules; one for another network needs a network namespace of its own"
)
_PATIENCE_SECONDS: Final = 10.0
"""For the one before to end, in an upgrade."""


@asynccontextmanager
async def build(settings: MasqSettings, process: Process) -> AsyncIterator[None]:
    """Wires the feed, the reconciler, the firewall and the calls. Raises Misconfigured: no rule could be set here."""
    async with single_instance_within("masq", _ADVICE, _PATIENCE_SECONDS):
        probe = HostProbe()
        firewall = AutoFirewall(settings.firewall, lock_path(), probe)
        connection = LeaseConnection(settings.lease_service, node_name(settings), process.transport)
        state = StateFile(settings.state_dir, "masq")
        cached = CachedTable(connection.node, state)
        events = EventFile(Path(settings.state_dir, "masq.events") if settings.state_dir else None, EventKind)
        journal = Journal(earlier=events.read())
        started = f"flannelette-masq {version()} of {connection.node} started"
        journal.note(Event(EventKind.SERVICE_STARTED, started))
        reconciler = Reconciler(
            connection.node,
            settings.rules,
            settings.iptables_resync,
            firewall,
            process.health,
            host_checks=probe.checks,
            earlier_network=cached.network,
            journal=journal,
        )
        cache = InputCache(connection.node, state, cached, reconciler)
        feed = Feed(
            connection,
            lease_pb2.VIEW_OWN,
            lambda touched: cache.update(feed.table, feed.error),
            most=settings.max_leases,
        )
        servicer = MasqServicer(reconciler, process.health, process.stopping)
        process.servicers["flannelette.masq.v1.MasqService"] = lambda server: (
            masq_pb2_grpc.add_MasqServiceServicer_to_server(servicer, server)
        )
        process.jobs |= {"feed": feed.run, "input cache": cache.run, "rules": reconciler.run}
        process.jobs["event file"] = partial(events.run, journal)
        process.on_readiness = partial(note_readiness, journal, EventKind.READINESS)
        try:
            if settings.rules.masquerade or settings.rules.forward:
                await firewall.open()
            yield
        finally:
            await reconciler.close()
            await cache.close()
            state.close()
            await events.close(journal)
            await connection.close()
            await firewall.close()
            probe.close()


def main() -> None:
    """The console script."""
    sys.exit(run("masq", MasqSettings, build))


if __name__ == "__main__":
    main()
