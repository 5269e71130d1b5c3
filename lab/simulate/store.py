"""What etcd has: read by itself, to compare every node with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.prefix import KeyKind, Keyspace, decode
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.values import Put, Transaction

PREFIX: Final = "/coreos.com/network"
_KEYS: Final = Keyspace(PREFIX)


@asynccontextmanager
async def etcd_client(endpoint: str) -> AsyncIterator[EtcdClient]:
    """Opens our own client of etcd, for a block."""
    client = EtcdClient(EtcdSettings((endpoint,), PREFIX), Timing(), "simulation")
    try:
        yield client
    finally:
        await client.close()


async def put_network(client: EtcdClient, network: str) -> None:
    """Writes the network configuration. Raises Unavailable."""
    await client.transact(Transaction((), (Put(_KEYS.config, network.encode()),)))


async def stored_leases(client: EtcdClient) -> dict[str, Lease]:
    """Each lease key with the node that its holder key names: no model of ours between. Raises Unavailable."""
    leases, holders = dict[str, Lease](), dict[str, str]()
    async for page in client.pages(_KEYS.root):
        for item in page.items:
            read = decode(_KEYS, item)
            if read.kind is KeyKind.SUBNET and read.lease is not None:
                leases[read.name] = read.lease
            elif read.kind is KeyKind.HOLDER and read.holder is not None:
                holders[read.name] = read.holder.node
    return {name: lease.held_by(holders.get(name, ""), 0) for name, lease in leases.items()}
