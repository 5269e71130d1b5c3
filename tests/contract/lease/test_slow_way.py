"""A lease service that is far away, or has little of a processor: each answer comes late, and comes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from tests.examples.leases import network
from tests.services.clusters import WEST, Exporter
from tests.waiting import eventually

DELAY_SECONDS = 1.2


@asynccontextmanager
async def slow_way(path: Path, target: Path) -> AsyncIterator[str]:
    """The address of a unix socket; what is sent there reaches the target, and its answers us, after the delay."""
    call_later = asyncio.get_running_loop().call_later

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                call_later(DELAY_SECONDS, writer.write, data)
        except OSError:
            pass
        finally:
            call_later(DELAY_SECONDS, writer.close)

    async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_target, to_target = await asyncio.open_unix_connection(target)
        await asyncio.gather(carry(reader, to_target), carry(from_target, writer))

    server = await asyncio.start_unix_server(both_ways, path)
    try:
        yield f"unix:{path}"
    finally:
        server.close()


async def test_a_lease_service_whose_first_answer_takes_longer_than_a_second_is_followed(tmp_path: Path) -> None:
    west = Exporter(tmp_path / "west.sock", network(WEST))  # type: ignore[abstract]  # the feed calls nothing else
    await west.start()
    async with slow_way(tmp_path / "slow.sock", tmp_path / "west.sock") as address:
        connection = LeaseConnection(address, "h9")
        feed = Feed(connection, pb.VIEW_ALL, lambda touched: None)
        task = asyncio.create_task(feed.run())
        try:
            await eventually(lambda: feed.table, lambda table: table.synced)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await connection.close()
            await west.stop()
