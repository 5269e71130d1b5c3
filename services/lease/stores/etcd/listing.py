"""Everything under the prefix at one revision."""

from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import Item, Position


async def read_listing(client: EtcdClient, keyspace: Keyspace, decoder: Decoder) -> tuple[tuple[Item, ...], Position]:
    """All keys, in order; linearizable. Parses page by page, so that ten thousand leases do not hold up the loop.

    Raises HistoryLost, Unavailable.
    """
    items: list[Item] = []
    async for page in client.pages(keyspace.root):
        decoder.prepare(keyspace, page.items)
        items += page.items
    decoder.forget_all_but({item.key for item in items})
    return tuple(items), page.position
