"""flannelette-lease: which node holds which subnet."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from services.lease.broker import Broker
from services.lease.guard.gate import Gate, GuardSettings
from services.lease.guard.memory import Memory
from services.lease.opening import identity_of, open_store
from services.lease.readiness import keep_health, show
from services.lease.service import SERVICE, LeaseService, add_to_server
from services.lease.settings import LeaseSettings
from services.runtime.process import Process, run


def main() -> int:
    """Runs the service until SIGTERM; returns the exit code."""
    return run("lease", LeaseSettings, build)


@asynccontextmanager
async def build(settings: LeaseSettings, process: Process) -> AsyncIterator[None]:
    """Opens the store and fills the process."""
    identity = await identity_of(settings)
    broker = Broker(settings.store, epoch=secrets.token_hex(4))
    store = open_store(settings, identity.node, broker, process)
    try:
        memory = Memory(settings.socket_dir / "lease.table")
        share = 100 if settings.store == "relay" else settings.guard_share  # what is confirmed above is so here
        guard = GuardSettings(share / 100, settings.guard_seconds)
        gate = Gate(store, broker, guard, recall=memory.recall)
        service = LeaseService(store, broker, gate, identity, process.health, settings.max_leases)
        process.servicers[SERVICE] = partial(add_to_server, service)
        process.jobs["store"] = gate.follow
        process.jobs["memory"] = partial(memory.keep, broker)
        process.jobs["readiness"] = partial(keep_health, broker, process.health)
        process.jobs["stalled streams"] = service.stalled.run
        process.jobs["streams"] = partial(_end_streams, broker, process.stopping)
        show(broker.table, process.health)
        yield
    finally:
        await store.close()


async def _end_streams(broker: Broker, stopping: asyncio.Event) -> None:
    """An open stream would keep the server from stopping."""
    await stopping.wait()
    broker.stop()


if __name__ == "__main__":
    sys.exit(main())
