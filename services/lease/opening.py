"""Opens the store that was asked for: one function a store. The others are not even imported; each has its client."""

from pathlib import Path
from typing import TYPE_CHECKING

from services.core.errors import Misconfigured
from services.lease.broker import Broker
from services.lease.identity import Identity
from services.lease.metrics import follow_subnets
from services.lease.settings import IN_MEMORY, LeaseSettings
from services.lease.store import Store
from services.runtime.options import listen_addresses, node_name
from services.runtime.process import Process

if TYPE_CHECKING:
    from services.lease.stores.kube import KubeSettings


async def identity_of(settings: LeaseSettings) -> Identity:
    """The node that this process serves, empty if central. Raises Misconfigured, Unavailable."""
    if settings.central or settings.store == "embedded":
        return Identity()
    if settings.store == "kube" and not settings.node:
        from services.lease.stores.kube.pod import node_of_our_pod

        return Identity(await node_of_our_pod(_kube_settings(settings)) or node_name(settings))
    return Identity(node_name(settings))


def open_store(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    """The store, for a process that serves this node, empty if central. It may add to the process's jobs.

    Raises Misconfigured.
    """
    return _STORES[settings.store](settings, node, broker, process)


def _etcd(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from services.lease.stores.etcd import EtcdSettings, EtcdStore

    store = EtcdStore(
        EtcdSettings(
            endpoints=tuple(settings.etcd_endpoints.split(",")),
            prefix=settings.etcd_prefix,
            cafile=settings.etcd_cafile,
            certfile=settings.etcd_certfile,
            keyfile=settings.etcd_keyfile,
            username=settings.etcd_username,
            password=settings.etcd_password,
        ),
        node=node,
        lease_seconds=settings.lease_seconds,
        presence=broker.presence,
    )
    process.jobs["sessions"] = store.keep_sessions
    follow_subnets(store.usage)
    return store


def _kube(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from services.lease.stores.kube import KubeStore

    return KubeStore(_kube_settings(settings), node=node)


def _kube_settings(settings: LeaseSettings) -> "KubeSettings":
    from services.lease.stores.kube import KubeSettings
    from services.lease.stores.kube.annotations import annotations

    return KubeSettings(
        api_url=settings.kube_api_url,
        kubeconfig=settings.kubeconfig_file,
        annotations=annotations(settings.kube_annotation_prefix),
        network_file=settings.net_config_path,
        sets_condition=settings.set_node_network_unavailable,
    )


def _embedded(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from services.lease.stores.embedded import EmbeddedStore

    store = EmbeddedStore(
        None if settings.store_file == Path(IN_MEMORY) else settings.store_file,
        net_config_path=settings.net_config_path,
        lease_seconds=settings.lease_seconds,
        presence=broker.presence,
    )
    follow_subnets(store.usage)
    return store


_LARGEST_LISTING = 64 << 20
"""Bytes: ListLeases of the lease service above has every lease in one message."""


def _relay(settings: LeaseSettings, node: str, broker: Broker, process: Process) -> Store:
    from services.lease.stores.relay import RelayStore
    from services.runtime.feed import LeaseConnection

    if settings.upstream in listen_addresses(settings, "lease"):
        raise Misconfigured(f"--upstream={settings.upstream} is this lease service itself: give that of another one")
    connection = LeaseConnection(settings.upstream, "", process.transport, _LARGEST_LISTING)
    store = RelayStore(connection, broker.history, broker.presence, broker.lose, settings.max_leases)
    process.jobs["nodes above"] = store.tell_of_nodes
    return store


_STORES = {"embedded": _embedded, "etcd": _etcd, "kube": _kube, "relay": _relay}
