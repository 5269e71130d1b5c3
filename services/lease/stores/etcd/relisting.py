"""The second listing, beside the watch: what etcd holds now, by nobody's memory."""

from contextlib import suppress
from typing import Final

from services.core.errors import Unavailable
from services.lease.store import Snapshot
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.listing import read_listing
from services.lease.stores.etcd.mirror import Mirror
from services.lease.stores.etcd.records import HistoryLost

_ATTEMPTS: Final = 3


async def relist(client: EtcdClient, keyspace: Keyspace, decoder: Decoder) -> Snapshot:
    """See Store.relist: linearizable, at one revision. A key with a bad value is refused, and no lease here."""
    for _ in range(_ATTEMPTS):
        with suppress(HistoryLost):  # compacted between two pages
            return Mirror(keyspace, decoder).replace(*await read_listing(client, keyspace, decoder))
    raise Unavailable("etcd is compacted faster than it can be listed: compact it less often")
