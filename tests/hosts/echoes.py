"""The datagrams by which a dataplane asks whether peers answer."""

import asyncio
from collections.abc import Sequence

from flannelette.services.core.family import Address
from flannelette.services.dataplane.probes.sockets import Datagrams
from tests.patience import PATIENCE


async def echoes(address: Address, sizes: Sequence[int]) -> int:
    """Asks an address from here with datagrams of these sizes, checksums made by the kernel and by us.

    Returns how many are answered, once they are as many as were sent; else it fails.
    """
    answered, sent = asyncio.Queue[int](), set[int]()
    datagrams = Datagrams(lambda reply, _: answered.put_nowait(reply.sequence))
    try:
        for size in sizes:
            for is_offloaded in (True, False):
                sent.add(sequence := len(sent))
                datagrams.send(address, sequence, size, is_offloaded=is_offloaded)
        async with asyncio.timeout(PATIENCE):
            assert {await answered.get() for _ in sent} == sent
    finally:
        datagrams.close()
    return len(sent)
