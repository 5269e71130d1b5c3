"""flannelette-lease: which node holds which subnet."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from services.lease.broker import Broker
from services.lease.identity import Identity
from services.lease.presence import Presence
from services.lease.readiness import keep_health, show
from services.lease.service import SERVICE, LeaseService, add_to_server
from services.lease.settings import IN_MEMORY, LeaseSettings
from services.lease.store import Store
from services.runtime.options import node_name
from services.runtime.process import Process, run


def main() -> int:
    """Runs the service until SIGTERM; returns the exit code."""
    return run("lease", LeaseSettings, build)


@asynccontextmanager
async def build(settings: LeaseSettings, process: Process) -> AsyncIterator[None]:
    """Opens the store and fills the process."""
    identity = Identity("" if settings.central or settings.store == "embedded" else node_name(settings))
    presence = Presence()
    store = _open(settings, identity, presence)
    try:
        broker = Broker(store.kind, epoch=secrets.token_hex(4), presence=presence)
        service = LeaseService(store, broker, identity, process.health)
        process.servicers[SERVICE] = partial(add_to_server, service)
        process.jobs["store"] = partial(broker.follow, store)
        process.jobs["readiness"] = partial(keep_health, broker, process.health)
        process.jobs["streams"] = partial(_end_streams, broker, process.stopping)
        show(broker.table, process.health)
        yield
    finally:
        await store.close()


async def _end_streams(broker: Broker, stopping: asyncio.Event) -> None:
    """An open stream would keep the server from stopping."""
    await stopping.wait()
    broker.stop()


def _open(settings: LeaseSettings, identity: Identity, presence: Presence) -> Store:
    """The store that was asked for; the others are not even imported, each brings a client of its own."""
    if settings.store == "etcd":
        from services.lease.stores.etcd import EtcdSettings, EtcdStore

        return EtcdStore(
            EtcdSettings(
                endpoints=tuple(settings.etcd_endpoints.split(",")),
                prefix=settings.etcd_prefix,
                cafile=settings.etcd_cafile,
                certfile=settings.etcd_certfile,
                keyfile=settings.etcd_keyfile,
                username=settings.etcd_username,
                password=settings.etcd_password,
            ),
            node=identity.node,
            lease_seconds=settings.lease_seconds,
        )
    from services.lease.stores.embedded import EmbeddedStore

    return EmbeddedStore(
        None if settings.store_file == Path(IN_MEMORY) else settings.store_file,
        net_config_path=settings.net_config_path,
        lease_seconds=settings.lease_seconds,
        presence=presence,
    )


if __name__ == "__main__":
    sys.exit(main())
