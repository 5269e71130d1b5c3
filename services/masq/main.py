"""`flannelette-masq`: the process."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2_grpc

from services.masq.firewalls.host import HostFirewall
from services.masq.firewalls.lock import lock_path
from services.masq.firewalls.signs import Lookout
from services.masq.knowledge import Knowledge
from services.masq.reconciler import Reconciler
from services.masq.service import MasqServicer
from services.masq.settings import MasqSettings
from services.masq.surroundings import look_around
from services.runtime.feed import Feed, LeaseConnection
from services.runtime.options import node_name
from services.runtime.process import Process, run
from services.runtime.sole import sole_in_time
from services.runtime.state_file import StateFile

_ADVICE: Final = (
    "stop it first, two would undo each other's rules; one for another network needs a network namespace of its own"
)
_PATIENCE_SECONDS: Final = 10.0
"""For the one before to end, in an upgrade."""


@asynccontextmanager
async def build(settings: MasqSettings, process: Process) -> AsyncIterator[None]:
    """Wires the feed, the reconciler, the firewall and the calls. Raises Misconfigured: no rule could be set here."""
    async with sole_in_time("masq", _ADVICE, _PATIENCE_SECONDS):
        firewall = HostFirewall(
            settings.firewall,
            lock_path(),
            lambda: reconciler.asks_for_nftables,
            lambda: reconciler.is_remembered,
        )
        connection = LeaseConnection(settings.lease_service, node_name(settings), process.transport)
        lookout = Lookout()
        reconciler = Reconciler(
            connection.node,
            settings.rules,
            settings.iptables_resync,
            firewall,
            process.health,
            look=partial(look_around, lookout),
        )
        state = StateFile(settings.state_dir, "masq")
        knowledge = Knowledge(connection.node, state, reconciler)
        feed = Feed(
            connection,
            lease_pb2.VIEW_OWN,
            lambda touched: knowledge.hear(feed.table, feed.error),
            most=settings.max_leases,
        )
        servicer = MasqServicer(reconciler, process.health)
        process.servicers["flannelette.masq.v1.MasqService"] = lambda server: (
            masq_pb2_grpc.add_MasqServiceServicer_to_server(servicer, server)
        )
        process.jobs |= {
            "feed": feed.run,
            "knowledge": knowledge.run,
            "rules": reconciler.run,
            "firewall": reconciler.watch,
        }
        try:
            if settings.rules.masquerade or settings.rules.forward:
                await firewall.open()
            yield
        finally:
            await reconciler.close()
            await knowledge.close()
            state.close()
            await connection.close()
            await firewall.close()
            lookout.close()


def main() -> None:
    """The console script."""
    sys.exit(run("masq", MasqSettings, build))


if __name__ == "__main__":
    main()
