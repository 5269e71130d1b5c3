"""Everything under the prefix at one revision."""

import asyncio
from contextlib import aclosing
from typing import Final

from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder, Known
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import Page, Position
from services.runtime.collector import making

_AT_ONCE: Final = 200
"""So many keys are parsed, about a millisecond, before others have their turn."""


async def read_listing(client: EtcdClient, keyspace: Keyspace, decoder: Decoder) -> tuple[list[Known], Position]:
    """All keys, in order; linearizable. Raises HistoryLost, Unavailable.

    Parsed in small parts while etcd looks for more: neither it nor the loop waits until ten thousand leases are read.
    """
    listed: list[Known] = []
    async with aclosing(client.pages(keyspace.root)) as pages:
        page: Page | None = await anext(pages)
        while page is not None:
            position = page.position
            following = asyncio.ensure_future(anext(pages, None))
            try:
                for start in range(0, len(page.items), _AT_ONCE):
                    await asyncio.sleep(0)
                    part = page.items[start : start + _AT_ONCE]
                    with making(len(part)):
                        listed += decoder.read_all(keyspace, part)
                page = await following
            finally:
                following.cancel()
                await asyncio.wait([following])  # the generator cannot be closed while it runs
    decoder.forget_all_but(listed)
    return listed, position
