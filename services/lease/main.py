"""flannelette-lease: which node holds which subnet.

Opens the store that the flags name and connects it, the lease table and the gRPC service. Only the store in use is
imported; each has a third-party client.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.admission import GuardSettings, SnapshotCache, StorePipeline
from flannelette.services.lease.events import LeaseEventKind, LeaseJournal
from flannelette.services.lease.imports.cluster import ImportedCluster, Imports
from flannelette.services.lease.imports.policy import Import
from flannelette.services.lease.metrics import HELD_REMOVALS, follow_subnets
from flannelette.services.lease.service import SERVICE, Identity, LeaseService, add_to_server
from flannelette.services.lease.settings import IN_MEMORY, LeaseSettings
from flannelette.services.lease.stores.store import Store
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.events import Event, EventFile, note_readiness
from flannelette.services.runtime.networks import directory_of
from flannelette.services.runtime.process.process import Process, run
from flannelette.services.runtime.process.settings import listen_addresses, node_name
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.state import MayFail, unwritten
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.tls import pair_findings

if TYPE_CHECKING:
    from flannelette.services.lease.stores.etcd.settings import EtcdSettings
    from flannelette.services.lease.stores.kube.values import KubeSettings

_LARGEST_LISTING = 64 << 20
"""Bytes: ListLeases of the lease service above has every lease in one message."""


def main() -> int:
    """Runs the service until SIGTERM; returns the exit code."""
    return run("lease", LeaseSettings, build)


@asynccontextmanager
async def build(settings: LeaseSettings, process: Process) -> AsyncIterator[LeaseService]:
    """Opens the store and fills the process."""
    identity = await identity_of(settings)
    files = directory_of("lease", settings.socket_dir)
    events = EventFile(files / f"lease{settings.socket_suffix}.events", LeaseEventKind)
    journal = LeaseJournal(events.read())
    started = f"flannelette-lease {version()} started, store {settings.store}"
    journal.note(Event(LeaseEventKind.SERVICE_STARTED, started))
    broker = Broker(settings.store, epoch=secrets.token_hex(4), journal=journal)
    imports = imports_of(settings, broker, process)
    memory = SnapshotCache(files / f"lease{settings.socket_suffix}.table", broker)
    store = open_store(settings, identity.node, broker, process)
    try:
        share = 100 if settings.store == "relay" else settings.guard_share  # what is confirmed above is so here
        guard = GuardSettings(share / 100, settings.guard_seconds)
        gate = StorePipeline(store, broker, guard, recall=memory.recall)
        HELD_REMOVALS.set_function(lambda: len(gate.held) + len(imports.held))
        service = LeaseService(
            store,
            broker,
            gate,
            identity,
            process.health,
            settings.max_leases,
            process.stopping,
            imports,
            settings.exports,
        )
        kept: list[MayFail] = [memory.file, events, *(each.file for each in imports.clusters)]
        process.health.finders += (lambda: unwritten(kept), gate.findings)
        process.servicers[SERVICE] = partial(add_to_server, service)
        process.jobs["imports"] = imports.run
        process.jobs["store"] = gate.follow
        process.jobs["memory"] = memory.run
        process.jobs["readiness"] = partial(keep_health, broker, process.health, is_central=settings.central)
        process.jobs["journal"] = journal.run
        process.jobs["event file"] = partial(events.run, journal)
        process.on_readiness = partial(note_readiness, journal, LeaseEventKind.READINESS)
        process.jobs["streams"] = partial(_end_streams, broker, process.stopping)
        show(broker.table, process.health, is_central=settings.central)
        yield service
    finally:
        await memory.write()
        await store.close()
        await imports.close()
        journal.flush()
        await events.close(journal)


def imports_of(settings: LeaseSettings, broker: Broker, process: Process) -> Imports:
    """The clusters of --import. Raises Misconfigured."""

    def make(policy: Import) -> ImportedCluster:
        file = directory_of("lease", settings.socket_dir) / f"lease{settings.socket_suffix}.import.{policy.name}"
        share = settings.guard_share / 100
        try:
            return ImportedCluster(
                policy, process.transport, broker, file, share, settings.guard_seconds, settings.max_leases
            )
        except Misconfigured as error:
            raise Misconfigured(f"--import {policy.name}: {error}") from None

    imports = Imports([make(policy) for policy in settings.imports], broker, settings.max_leases)
    process.health.finders.append(imports.findings)
    return imports


async def _end_streams(broker: Broker, stopping: asyncio.Event) -> None:
    """An open stream would keep the server from stopping."""
    await stopping.wait()
    broker.stop()


async def keep_health(broker: Broker, health: Health, *, is_central: bool) -> None:
    """Follows the table until the broker is stopped."""
    with suppress(Unavailable):
        while True:
            show(broker.table, health, is_central=is_central)
            await broker.notifier.next("")  # no node is called that: only what concerns all, and never a lease alone


def show(table: Table, health: Health, *, is_central: bool) -> None:
    """Says what is missing. Without any network nobody gets a lease: not ready; with the last good one it is.

    A central service without its store is out of service: nodes shall connect to another one, which may have it.
    """
    store = table.store
    assert store is not None  # noqa: S101 - the broker's always has one
    if not store.connected:
        health.set("own store", f"the {store.kind} store is away: {store.error}", outage=not is_central)
    elif not table.synced:
        health.set("own store", f"the leases of the {store.kind} store have not been read yet")
    else:
        health.set("own store")
    health.set("configuration", "" if table.network else table.network_error or "the network is not known yet")


async def identity_of(settings: LeaseSettings) -> Identity:
    """The node that this process serves, empty if central. Raises Misconfigured, Unavailable."""
    if settings.central or settings.store == "embedded":
        return Identity()
    if settings.store == "kube" and not settings.node:
        from flannelette.services.lease.stores.kube.client import node_of_our_pod

        return Identity(await node_of_our_pod(_kube_settings(settings)) or node_name(settings))
    return Identity(node_name(settings))


def open_store(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    """The store, for a process that serves this node, empty if central. It may add to the process's jobs.

    Raises Misconfigured.
    """
    return _STORES[settings.store](settings, node, broker, process)


def _etcd(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from flannelette.services.lease.stores.etcd.store import EtcdStore

    store = EtcdStore(
        etcd_settings(settings),
        node=node,
        lease_seconds=settings.lease_seconds,
        connected_nodes=broker.connected_nodes,
    )
    process.jobs["sessions"] = store.keep_sessions
    process.jobs["members"] = store.check_members
    process.health.finders.append(store.findings)
    if settings.etcd_certfile and settings.etcd_keyfile:
        pair = Path(settings.etcd_certfile), Path(settings.etcd_keyfile)
        process.health.finders.append(lambda: pair_findings(*pair, time.time()))
    follow_subnets(store.usage)
    return store


def etcd_settings(settings: LeaseSettings) -> "EtcdSettings":
    """Where etcd is, and how to be let in. Raises Misconfigured."""
    from flannelette.services.lease.stores.etcd.settings import EtcdSettings

    return EtcdSettings(
        endpoints=tuple(settings.etcd_endpoints.split(",")),
        prefix=settings.etcd_prefix,
        cafile=settings.etcd_cafile,
        certfile=settings.etcd_certfile,
        keyfile=settings.etcd_keyfile,
        username=settings.etcd_username,
        password=settings.etcd_password,
    )


def _kube(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from flannelette.services.lease.stores.kube.store import KubeStore

    store = KubeStore(_kube_settings(settings), node=node)
    process.jobs["events"] = store.write_events
    return store


def _kube_settings(settings: LeaseSettings) -> "KubeSettings":
    from flannelette.services.lease.stores.kube.values import KubeSettings, annotations

    return KubeSettings(
        api_url=settings.kube_api_url,
        kubeconfig=settings.kubeconfig_file,
        annotations=annotations(settings.kube_annotation_prefix),
        network_file=settings.net_config_path,
        sets_condition=settings.set_node_network_unavailable,
    )


def _embedded(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from flannelette.services.lease.stores.embedded import EmbeddedStore

    store = EmbeddedStore(
        None if settings.store_file == Path(IN_MEMORY) else settings.store_file,
        net_config_path=settings.net_config_path,
        lease_seconds=settings.lease_seconds,
        connected_nodes=broker.connected_nodes,
    )
    follow_subnets(store.usage)
    return store


def _relay(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from flannelette.services.lease.stores.relay import RelayStore
    from flannelette.services.runtime.lease.feed import LeaseConnection

    if settings.upstream in listen_addresses(settings, "lease"):
        raise Misconfigured(f"--upstream={settings.upstream} is this lease service itself: give that of another one")
    connection = LeaseConnection(settings.upstream, "", process.transport, _LARGEST_LISTING)
    store = RelayStore(connection, broker.change_log, broker.connected_nodes, broker.lose, settings.max_leases)
    process.jobs["nodes above"] = store.tell_of_nodes
    return store


_STORES = {"embedded": _embedded, "etcd": _etcd, "kube": _kube, "relay": _relay}


if __name__ == "__main__":
    sys.exit(main())
