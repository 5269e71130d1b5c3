"""Many watchers of one lease service process: they come at once, some never read, and nobody waits for anybody.

200 streams here, 5,000 with FLANNELETTE_SOAK=1.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.stores.embedded import Database
from flannelette.services.runtime.lease.wire import request_to_proto, step_from_proto
from tests.examples.leases import NETWORK_JSON, make_lease, make_request
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import eventually

STREAMS = 5_000 if os.environ.get("FLANNELETTE_SOAK") else 200
LEASES = 3_000
MIB_A_STREAM = 0.1
"""What a stream may cost in memory: some 25 KB for gRPC, and one message of at most 64 KiB."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    config = tmp_path / "net.json"
    config.write_text(NETWORK_JSON)
    database = Database(tmp_path / "leases.db")
    database.write(make_lease(number) for number in range(LEASES))
    database.close()
    flags = (f"--net-config-path={config}", f"--store-file={tmp_path}/leases.db")
    with ServiceProcess(tmp_path, *flags) as process:
        yield process


class Herd:
    """Subscribers in a process of their own, `bench.fanout_client`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout
        line = await asyncio.wait_for(self._process.stdout.readline(), 2 * PATIENCE)
        assert line, "the subscribers have ended"
        return line.decode().strip()

    async def expect(self, node: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{node}\n".encode())
        assert await self.line() == "expecting"


@asynccontextmanager
async def herd(service: ServiceProcess, streams: int) -> AsyncIterator[Herd]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.fanout_client", service.address, str(streams)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 22,
    )
    try:
        yield Herd(process)
    finally:
        process.kill()
        await process.wait()


async def test_a_herd_is_accepted_whole_and_one_change_reaches_all(service: ServiceProcess) -> None:
    async with stub_of(service.address) as stub, herd(service, STREAMS) as crowd:
        assert await crowd.line() == "ready"
        assert (await stub.GetStatus(pb.GetStatusRequest())).watchers == STREAMS
        await crowd.expect("newcomer")
        await stub.AcquireLease(request_to_proto(make_request("newcomer", "172.31.0.1")))
        assert len(json.loads(await crowd.line())) == STREAMS


async def test_who_does_not_read_blocks_nobody_costs_little_and_ends_with_the_table(service: ServiceProcess) -> None:
    async with stub_of(service.address) as stub:
        await stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True)
        before = service.resident_mib
        sleepers = [stub.WatchLeases(pb.WatchLeasesRequest()) for _ in range(STREAMS)]
        await eventually(lambda: stub.GetStatus(pb.GetStatusRequest()), lambda status: status.watchers >= STREAMS)
        reader, table = stub.WatchLeases(pb.WatchLeasesRequest()), Table()
        await read_until(reader, table, lambda: table.synced)
        for number in range(25):  # each takes the fifth of a second by which 200 watchers lengthen a pause
            lease = await stub.AcquireLease(
                request_to_proto(make_request(f"busy{number}", f"172.31.1.{number % 250 + 1}"))
            )
            await read_until(reader, table, lambda lease=lease.lease: is_shown(table, lease))
        assert service.resident_mib - before < 20 + STREAMS * MIB_A_STREAM
        for late in sleepers[:: STREAMS // 5]:
            slow = Table()
            await read_until(late, slow, lambda slow=slow: slow.cursor == table.cursor)
            assert slow.leases == table.leases
        for call in (reader, *sleepers):
            call.cancel()


def is_shown(table: Table, lease: pb.Lease) -> bool:
    known = table.leases.get(lease.name)
    return known is not None and str(known.subnets[0].public_address) == lease.subnets[0].public_address


async def read_until(call: Any, table: Table, claim: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not claim():
            table.fold(step_from_proto(await call.read()))
